"""A worker in plain Python that behaves as its configuration's name says: a stand-in for a framework.

`python fake_peer.py SYSTEM START` speaks the workers' protocol. It answers with the settings' "answer" and
appends a line to `said.log` in its working folder for everything it is asked, with the time it took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

NAME, START = sys.argv[1], json.loads(sys.argv[2])
SECONDS = {"jax": 1.0, "mxnet": 2.0, "torch": 0.5}
BROKEN: list[str] = []


def note(*values: object) -> None:
    with Path("said.log").open("a", encoding="utf-8") as log:  # one write a line, so that lines stay whole
        log.write(" ".join(map(str, (NAME, *values))) + "\n")


def prepare(request: dict[str, Any]) -> dict[str, float]:
    how = request["configuration"]
    if how == "dies":
        print("Segmentation fault, nearly", file=sys.stderr)
        os._exit(3)
    if how in ("hangs", request["settings"].get("hangs")):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note("child", child.pid)
        time.sleep(600)
    if how == "junk":
        print("WARNING: something happened", flush=True)
    if how == "wrong id":
        print(json.dumps({"id": 99, "ok": True, "value": {}}), flush=True)
    if how == "floods":
        sys.stdout.write("x" * 2_000_000)
        sys.stdout.flush()
        time.sleep(600)
    if how == "refuses":
        raise RuntimeError("no compiler here\nand a second line")
    answer = np.asarray(request["settings"]["answer"], float)
    values = {"wrong": answer * 1.1, "shape": answer[:1], "nan": answer * np.nan}
    if how == "no answers":
        return {"first_s": 0.25}
    np.savez(request["answers"], output=values.get(how, answer))
    return {"first_s": 0.25}


def turn(request: dict[str, Any], turns: int) -> dict[str, float]:
    how = request["key"].split("/")[1]
    if how == "dies later" and turns == 3:
        os._exit(3)
    if how == "sleeps":
        time.sleep(0.05)
    if how == "odd":
        return {"": "fast"}  # type: ignore[dict-item]
    if how == "nothing":
        return {}
    seconds = SECONDS.get(NAME, 1.0) * (2.0 if how in ("slow", "imperative") else 1.0)
    return {"": seconds, "cores": 1.9 if how == "greedy" else 1.0}


def main() -> None:
    if "import" in START.get("fails", ""):
        sys.exit("ImportError: no such framework")
    print(json.dumps({"id": 0, "ok": True, "value": {"versions": {NAME: "1.0"}, **START}}), flush=True)
    note("start", os.getpid())
    turns: dict[str, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        began = time.monotonic()
        try:
            key = request["key"]
            if request["op"] == "turn" and key.endswith("/breaks its device"):
                BROKEN.append(key)
            if BROKEN:  # all that follows fails, too
                raise RuntimeError("CUDA error: device-side assert triggered")
            if request["op"] == "prepare":
                turns[key], value = 0, prepare(request)
            else:
                turns[key] += 1
                value = turn(request, turns[key])
            reply = {"id": request["id"], "ok": True, "value": value}
        except Exception as e:
            reply = {
                "id": request["id"],
                "ok": False,
                "error": f"{type(e).__name__}: {str(e).splitlines()[0]}",
            }
        turn_settings = (request["calls"], request["lead"]) if request["op"] == "turn" else ()
        note(request["op"], request["key"].replace(" ", "_"), began, time.monotonic(), *turn_settings)
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
