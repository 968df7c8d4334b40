"""Read the table of public programs, and make a program ready to run from a clone of its repository.

The table, programs.toml, holds nothing of the programs but fragments to find a line by. A program comes from
the commit that the table names; our edits make it shorter, or give it data that we make.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError

HERE = Path(__file__).resolve().parent
TABLE = HERE / "programs.toml"
STAND_INS = HERE / "stand_ins"
VERDICTS = ("true", "half", "redundant", "false")
FOUND = ("finding", "note", "no")


@dataclass(frozen=True)
class Edit:
    """One change of a program's text: `find` occurs once, or every occurrence is replaced.

    With `line`, only that line is changed. With `file`, a module is changed: its path is from the script on.
    """

    find: str
    put: str
    every: bool = False
    line: int = 0
    file: str = ""


@dataclass(frozen=True)
class Judged:
    """What a person says of one finding: whether it is true, and why."""

    cause: str
    line: int
    verdict: str
    why: str = ""


@dataclass(frozen=True)
class Slow:
    """A cause that an expert names after reading and measuring the program.

    Attributes:
      what: the cause, with its line.
      share: the part of the program's time that it costs.
      found: "finding", "note" or "no": whether watch names it at its line.
    """

    what: str
    share: float
    found: str


@dataclass(frozen=True)
class Repair:
    """A change, in words and as edits.

    Attributes:
      name: short, and unique in the program.
      what: the change in words.
      printed: whether watch's advice says this, so that it can be followed as it is printed.
      edits: of the program's text.
    """

    name: str
    what: str
    printed: bool
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Program:
    """One public program: where it comes from, how it is run here, and what people say of it.

    Attributes:
      path: of the program in its repository: a script, a notebook, or a page with code cells.
      folder: what else of the repository it needs; "" if nothing.
      shorter: what our edits change, in words.
      stand_ins: modules of ours beside the script, NAME or NAME:PATH, in place of a data set or a package.
      before: code of ours before the program; `after`: after it.
      status: with which it ends.
      times: a pattern of times in its output that have no unit.
      variables: of the environment.
    """

    name: str
    repository: str
    commit: str
    path: str
    environment: str
    folder: str = ""
    shorter: str = ""
    stand_ins: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    status: int = 0
    times: str = ""
    edits: tuple[Edit, ...] = ()
    before: str = ""
    after: str = ""
    findings: tuple[Judged, ...] = ()
    slow: tuple[Slow, ...] = ()
    repairs: tuple[Repair, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Environment:
    """The packages of an environment, as `uv pip install` takes them; some are replaced by another one."""

    name: str
    python: str
    packages: tuple[str, ...]
    replaced: Mapping[str, str] = field(default_factory=dict)


def read_table(path: Path = TABLE) -> tuple[dict[str, Program], dict[str, Environment]]:
    """Return the programs and the environments of a table, by name.

    Raises:
      JaxperfError: an entry has a key or a value that is not understood.
    """
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    made = entries.pop("environment", {})
    environments = {
        name: Environment(name, each["python"], tuple(each["packages"]), each.get("replaced", {}))
        for name, each in made.items()
    }
    programs = {name: _program(name, values) for name, values in entries.items()}
    for program in programs.values():
        if program.environment not in environments:
            raise JaxperfError(f"{path}: {program.name} needs an environment {program.environment!r}")
    return programs, environments


def _program(name: str, values: dict[str, Any]) -> Program:
    try:
        values["edits"] = _edits(values.get("edits", ()))
        for key in ("arguments", "stand_ins"):
            values[key] = tuple(values.get(key, ()))
        values["findings"] = tuple(Judged(**each) for each in values.get("findings", ()))
        values["slow"] = tuple(Slow(**each) for each in values.get("slow", ()))
        values["repairs"] = tuple(
            Repair(each["name"], each["what"], each["printed"], _edits(each["edits"]))
            for each in values.get("repairs", ())
        )
        program = Program(name, **values)
    except (TypeError, KeyError, ValueError) as e:
        raise JaxperfError(f"the table's entry {name} is not understood: {e}") from None
    for judged in program.findings:
        if judged.verdict not in VERDICTS:
            raise JaxperfError(f"{name}: verdict {judged.verdict!r} is none of {', '.join(VERDICTS)}")
    for slow in program.slow:
        if slow.found not in FOUND:
            raise JaxperfError(f"{name}: found = {slow.found!r} is none of {', '.join(FOUND)}")
    return program


def _edits(rows: Sequence[Sequence[Any]]) -> tuple[Edit, ...]:
    """Return edits from rows [find, put], or [find, put, WHICH] with "every", a line or a module."""
    edits = []
    for find, put, *which in rows:
        if not which:
            edits.append(Edit(find, put))
        elif which == ["every"]:
            edits.append(Edit(find, put, every=True))
        elif str(which[0]).endswith(".py"):
            edits.append(Edit(find, put, file=which[0]))
        else:
            edits.append(Edit(find, put, line=int(which[0])))
    return tuple(edits)


def edited(text: str, edits: Sequence[Edit], where: str) -> str:
    """Return the text after the edits.

    Raises:
      JaxperfError: what an edit looks for is not there, or is there more than once.
    """
    for edit in edits:
        if edit.line:
            lines = text.split("\n")
            if edit.line > len(lines) or edit.find not in lines[edit.line - 1]:
                raise JaxperfError(f"{where}: line {edit.line} does not contain {edit.find!r}")
            lines[edit.line - 1] = lines[edit.line - 1].replace(edit.find, edit.put)
            text = "\n".join(lines)
            continue
        times = text.count(edit.find)
        if times == 0 or (times > 1 and not edit.every):
            raise JaxperfError(f"{where}: {edit.find!r} occurs {times} times, not once")
        text = text.replace(edit.find, edit.put)
    return text


# --- programs from clones


def clone_of(repository: str, folder: Path) -> Path:
    """Return the clone of a repository in a folder: OWNER+NAME, with or without a working tree.

    Raises:
      JaxperfError: it is not there.
    """
    path = folder / repository.replace("/", "+")
    if not path.exists():
        raise JaxperfError(
            f"{folder} has no {path.name}; git clone --bare https://github.com/{repository} {path}"
        )
    return path


def make_ready(program: Program, clones: Path, to: Path, edits: Sequence[Edit] = ()) -> Path:
    """Write a program into a new folder, shortened and with further edits; return its script.

    Raises:
      JaxperfError: the clone lacks the commit or the path, or an edit does not fit.
    """
    clone, what = clone_of(program.repository, clones), program.folder or program.path
    to.mkdir(parents=True)
    command = ["git", "-C", str(clone), "archive", program.commit, what]
    archive = subprocess.run(command, capture_output=True)
    if archive.returncode:
        raise JaxperfError(
            f"{clone.name} has no {what} at {program.commit}: {archive.stderr.decode().strip()}"
        )
    subprocess.run(["tar", "-x", "-C", str(to)], input=archive.stdout, check=True)
    source = to / program.path
    script = source.with_suffix(".py")
    changes = [*program.edits, *edits]
    text = edited(as_script(source), [edit for edit in changes if not edit.file], program.name)
    script.write_text(program.before + text + program.after, encoding="utf-8")
    for edit in changes:
        if edit.file:
            module = script.parent / edit.file
            module.write_text(edited(module.read_text(encoding="utf-8"), [edit], edit.file), encoding="utf-8")
    for stand_in in program.stand_ins:
        name, _, path = stand_in.partition(":")
        shutil.copyfile(STAND_INS / f"{name}.py", to / path if path else script.with_name(f"{name}.py"))
    return script


def as_script(path: Path) -> str:
    """Return the Python code of a script, a notebook, or a Markdown page with code cells.

    A Markdown page keeps its line numbers: what is no code becomes an empty line. Of IPython's lines, %time
    runs what it times; others, and lines for the shell, become comments.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return text
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        parts = []
        for i, cell in enumerate(cells, start=1):
            source = cell["source"]
            parts.append(f"# cell {i}\n" + (source if isinstance(source, str) else "".join(source)))
        return _without_magic("\n".join(parts)) + "\n"
    return _without_magic("\n".join(_code_of_markdown(text.split("\n")))) + "\n"


def _without_magic(code: str) -> str:
    code = re.sub(r"^(\s*)%time (.*)$", r"\1\2", code, flags=re.MULTILINE)
    return re.sub(r"^(\s*)([%!].*)$", r"\1pass  # \2", code, flags=re.MULTILINE)


def _code_of_markdown(lines: list[str]) -> Iterator[str]:
    """Yield each line of a page if it is inside of a code cell, and an empty line otherwise."""
    inside, options = False, False
    for line in lines:
        if not inside and re.match(r"```\{code-cell\}|```python", line):
            inside, options = True, True
            yield ""
        elif inside and line.startswith("```"):
            inside = False
            yield ""
        elif inside and options and (line.startswith(":") or line == "---"):
            yield ""  # an option of the cell
        else:
            options = options and inside and not line.strip()
            yield line if inside else ""


def place_in(script_line: int, path: Path) -> str:
    """Return where a line of the script stands in the program as it is published: a cell, or the line."""
    if path.suffix != ".ipynb":
        return f"line {script_line}"
    cell, first = 0, 0
    for i, line in enumerate(as_script(path).split("\n"), start=1):
        if i > script_line:
            break
        if match := re.fullmatch(r"# cell (\d+)", line):
            cell, first = int(match[1]), i
    return f"cell {cell}, line {script_line - first}"
