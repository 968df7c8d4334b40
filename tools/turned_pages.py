"""Run sections with all verdicts turned around, to read the sentences that this machine never shows.

    python tools/turned_pages.py build/turned [SECTION...]    # at toy size, some minutes for all
    make book RESULTS=build/turned OUT=build/turned/site      # the pages, to read beside those of a true run

What holds is said not to hold, what does not hold or could not be measured is said to hold. The results say
that they are turned around; they are for reading and for nothing else.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from jaxperf.chapter import catalogue
from jaxperf.chapter.run_sections import child_environment

TURNED = {
    "holds": "does not hold",
    "does not hold": "holds",
    "undecided": "holds",
    "not measurable here": "holds",
}
PROGRAM = f"""
import runpy, sys
from jaxperf.result import recorder
recorder.turned = {TURNED!r}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_turned(name: str, folder: Path, *flags: str) -> int:
    """Run a section turned around; return its exit status."""
    script = catalogue.folder() / f"{name}.py"
    kept = [f"--json={folder / f'{name}.json'}", f"--notebook={folder / f'{name}.ipynb'}"]
    command = [sys.executable, "-c", PROGRAM, str(script), *kept, *flags]
    return subprocess.run(command, env=child_environment(), check=False).returncode


def main() -> int:
    """Run the sections; return 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="takes the results and notebooks")
    parser.add_argument("names", nargs="*", help="sections; all but the comparison by default")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    names = [catalogue.find(word).name for word in options.names]
    names = names or [section.name for section in catalogue.SECTIONS if section.name != "peers"]
    statuses = [run_turned(name, options.folder.resolve(), "--smoke", "--answers") for name in names]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
