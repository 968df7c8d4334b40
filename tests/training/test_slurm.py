import os
import shutil
import subprocess
from pathlib import Path

import pytest

from jaxperf.process import child_environment
from jaxperf.result.store import load_result

ROOT = Path(__file__).parents[2]
DAEMONS = ("slurmctld", "slurmd", "sbatch", "munged")
MISSING = [name for name in DAEMONS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0 or bool(MISSING), reason="needs root, and Debian's SLURM and munge"),
]
SUBMIT = "sbatch --gpus-per-task=0 --wait"
# `scancel --signal` sends to each task what SLURM sends them a minute before the job's time is over.
STOPPED_AND_QUEUED_AGAIN = """
set -eu
{submit} --output="$HERE/log" deploy/slurm.sh {added} || echo "stopped: $?" &
until ls "$HERE"/saved/seed-0/[0-9] >/dev/null 2>&1; do sleep 0.1; done
scancel --signal=TERM 1
wait
scontrol requeue 1
while squeue --noheader --states=all --jobs=1 --format=%T | grep -Ev "COMPLETED|FAILED"; do sleep 0.5; done
scontrol show job 1
"""


def in_cluster(folder, commands):
    command = [str(ROOT / "tests" / "slurm_cluster.sh"), str(folder / "slurm"), "bash", "-c", commands]
    environment = child_environment() | {"JAX_PLATFORMS": "cpu", "HERE": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_job_of_two_nodes_that_is_stopped_is_queued_again_and_goes_on(tmp_path):
    added = f"--smoke --epochs 2 --updates 400 --json {tmp_path}/r.json --every-steps 1"
    added += f" --checkpoints {tmp_path}/saved"
    output = in_cluster(tmp_path, STOPPED_AND_QUEUED_AGAIN.format(submit=SUBMIT, added=added))
    log = (tmp_path / "log").read_text()
    said = ("stopped: 143", "JobState=COMPLETED", "Restarts=1")
    assert all(words in output for words in said), output + log
    for number in (0, 1):
        assert f"{number}: SIGTERM: stopped after step " in log and f"{number}: going on after step " in log
    result = load_result(tmp_path / "r.json")
    assert not result.incomplete and result.config["processes"] == 2


def test_a_task_that_fails_ends_the_job_and_the_tasks_that_would_wait(tmp_path):
    (tmp_path / "broken.py").write_text(
        "import os, sys, time\n"
        "sys.exit('error: broken') if os.environ['SLURM_PROCID'] == '1' else time.sleep(300)\n"
    )
    arguments = f'--output="$HERE/log" deploy/slurm.sh {tmp_path}/broken.py'
    # srun's status is the failed task's, or that of the one it ended by SIGTERM if that is reported in time
    lines = in_cluster(tmp_path, f"{SUBMIT} {arguments} || echo status $?").splitlines()
    assert lines[-1] in ("status 1", "status 143"), lines
    assert "1: error: broken" in (tmp_path / "log").read_text()
