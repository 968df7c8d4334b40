import subprocess
import sys

import psutil
import pytest

from jaxperf.process import child_environment

CHILD = """
import signal, sys, time
from jaxperf import process as orphans
orphans.LOOK_S = orphans.PATIENCE_S = 0.05
if "deaf" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
orphans.follow_parent()
print("ready", flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys, time
from jaxperf.process import PARENT
env = os.environ | ({PARENT: str(os.getpid())} if "asked" in sys.argv else {})
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], env=env, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("modes", [("asked",), ("asked", "deaf"), ()])
def test_a_process_outlives_a_killed_parent_only_where_nobody_asked_it_to_follow(modes):
    command = [sys.executable, "-c", PARENT, CHILD, *modes]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment()) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    if modes:
        child.wait()
        return
    with pytest.raises(psutil.TimeoutExpired):
        child.wait(0.5)
    child.kill()
