"""Processes that tests start. Pytest's time limit is their only one, so that a slow machine fails none."""

import subprocess
import sys

from jaxperf.process import child_environment


def run(*words, folder=None, **variables):
    return subprocess.run(**_options(words, folder, variables), capture_output=True)


def start(*words, folder=None, **variables):
    pipe = subprocess.PIPE
    return subprocess.Popen(**_options(words, folder, variables), stdout=pipe, stderr=pipe)


def _options(words, folder, variables):
    environment = child_environment() | {"JAX_PLATFORMS": "cpu"} | variables
    return {"args": [sys.executable, *map(str, words)], "cwd": folder, "env": environment, "text": True}
