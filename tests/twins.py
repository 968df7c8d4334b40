"""The programs of tests/slow_programs, each with its repaired twin in the same file, like a diff.

    python tests/twins.py new_jit     # print the repaired program

A file runs as it is as the slow program. A line that ends in `# -` belongs to the slow program alone. A
comment that begins with `# +` is a line of the repaired program. `# cause: NAME`, or `# - cause: NAME`, marks
the line that `jaxperf watch` must name.
"""

import re
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "slow_programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))
_CAUSE = re.compile(r"  # (?:- )?cause: (.*)$")
_SLOW = re.compile(r"  # -(?: cause: .*)?$")
_REPAIRED = re.compile(r"^( *)# \+ ?")


def cause(path):
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    ((name, number),) = ((mark[1], n) for n, line in lines if (mark := _CAUSE.search(line)))
    return name, number


def marked(line):
    """Return "-" for a line of the slow program alone, "+" of the repaired one, else " "; and its code."""
    if _REPAIRED.match(line):
        return "+", _REPAIRED.sub(r"\1", line)
    sign = "-" if _SLOW.search(line) else " "
    return sign, _CAUSE.sub("", _SLOW.sub("", line))


def repaired(path):
    lines = map(marked, path.read_text(encoding="utf-8").splitlines())
    return "".join(f"{code}\n" for sign, code in lines if sign != "-")


def write_repaired(name, folder):
    path = folder / f"{name}.py"
    path.write_text(repaired(PROGRAMS / path.name), encoding="utf-8")
    return path


if __name__ == "__main__":
    print(repaired(PROGRAMS / f"{sys.argv[1]}.py"), end="")
