"""Processes that tests start. Pytest's time limit is their only one, so that a slow machine fails none."""

import subprocess
import sys

from jaxperf.process import child_environment

Finished = subprocess.CompletedProcess[str]
Started = subprocess.Popen[str]


def run(*words, folder=None, **variables):
    """Run Python with these words, in a folder and with environment variables, to its end."""
    return subprocess.run(_command(words), capture_output=True, text=True, **_place(folder, variables))


def start(*words, folder=None, **variables):
    """Start Python with these words; its output is to be read by `communicate`."""
    pipe = subprocess.PIPE
    return subprocess.Popen(_command(words), stdout=pipe, stderr=pipe, text=True, **_place(folder, variables))


def _command(words):
    return [sys.executable, *map(str, words)]


def _place(folder, variables):
    return {"cwd": folder, "env": child_environment() | {"JAX_PLATFORMS": "cpu"} | variables}
