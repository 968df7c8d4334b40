"""A framework in plain Python that behaves as its configuration's name says, by the real ones' protocol."""

import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "frameworks"))

import numpy as np
import worker

NAME = os.environ["FAKE"]
SECONDS = {"jax": 1.0, "mxnet": 2.0, "torch": 0.5}


def note(*words):
    with Path("said.log").open("a", encoding="utf-8") as log:  # one write a line, so that lines stay whole
        log.write(" ".join(map(str, (NAME, os.getpid(), *words))) + "\n")


def make(settings, how):
    note("prepare", how.replace(" ", "_"))
    if how == "dies":
        print("Segmentation fault, nearly", file=sys.stderr)
        os._exit(3)
    if how == "hangs":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note("child", child.pid)
        time.sleep(600)
    if how == "refuses":
        raise RuntimeError("no compiler here\nand a second line")
    if how == "breaks its device":
        raise RuntimeError("CUDA error: device-side assert triggered")
    answer = np.asarray(settings["answer"], float)
    values = {"wrong": answer * 1.1, "shape": answer[:1], "nan": answer * np.nan}
    turns = 0

    def turn(calls):
        nonlocal turns
        turns += 1
        note("turn", how.replace(" ", "_"), calls)
        if how == "dies later" and turns == 5:  # a turn is two, one of them not timed
            os._exit(3)
        if how == "odd":
            return {"": float("nan")}
        seconds = SECONDS[NAME] * (2.0 if how == "slow" else 1.0)
        return {"": seconds, "cores": 1.9 if how == "greedy" else 0.0}

    return worker.Task(0.25, {"output": values.get(how, answer)}, turn)


if __name__ == "__main__":
    worker.serve({NAME: "1.0"}, {"fake": make})
