"""`python -m tools.gpu_check pack OUT` collects the folder whose `check.sh` runs `check --out DIR` there."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxperf.process import ended
from tools.gpu_check import check, pack


def main() -> int:
    """Read the command line, and pack or check."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="collect sources, data and wheels for a bare machine")
    packing.add_argument("out", type=Path, help="folder that takes everything")
    checking = commands.add_parser("check", help="decide the open statements on this machine")
    checking.add_argument("--out", type=Path, required=True, help="folder of logs, summary and archive")
    checking.add_argument("--seconds", type=float, default=470, help="for all steps together")
    checking.add_argument("--only", nargs="*", default=[], help="names of steps; all if none is named")
    checking.add_argument("--rehearse", action="store_true", help="toy sizes on the CPU")
    arguments = parser.parse_args()
    if arguments.command == "pack":
        return pack.main(arguments.out)
    return check.main(
        arguments.out, seconds=arguments.seconds, only=arguments.only, rehearse=arguments.rehearse
    )


if __name__ == "__main__":
    raise SystemExit(ended(main))
