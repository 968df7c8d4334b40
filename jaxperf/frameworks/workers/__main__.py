"""One worker: `python .../workers/__main__.py SYSTEM '{"cores": [0, 1], ...}'`, then lines of JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Become the worker of the system that the command line names."""
    folder = Path(__file__).resolve().parent
    sys.path[0] = str(folder.parent)  # only for these imports: the host's modules have common names
    start = json.loads(sys.argv[2])
    if start.get("cores") and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, start["cores"])  # before a framework counts them
    side = importlib.import_module(f"{folder.name}.{sys.argv[1]}_worker")
    wire = importlib.import_module(f"{folder.name}.wire")
    del sys.path[0]
    wire.serve(side.greet, side.make, start)


if __name__ == "__main__":
    main()
