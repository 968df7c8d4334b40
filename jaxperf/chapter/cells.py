"""Scripts of cells: run one and keep its notebook, or load its functions for a test.

A cell begins at a line `# %%` (code) or `# %% [markdown]`, as in VS Code, PyCharm, Spyder and jupytext. Cells
run in this process, one by one, under the script's own file name and line numbers. A Jupyter kernel would
make each jitted call slower.
"""

import ast
import contextlib
import copy
import hashlib
import io
import re
import sys
import traceback
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import nbformat
from nbformat import v4
from rich.console import Console

from jaxperf.chapter import display, notebooks
from jaxperf.errors import JaxperfError, first_line, to_one_line
from jaxperf.measure.compile_log import CompileLog, watch_compilation
from jaxperf.measure.other_load import OtherLoad, other_load
from jaxperf.process import FAILED, end_at_once, ended, follow_parent, forced_end, say
from jaxperf.result import Fact, Failed, Note, recorder
from jaxperf.result.recorder import Recorder
from jaxperf.result.store import check_writable, save_result, save_so_far, so_far, write_whole

MINI = "jaxperf.fashion_mnist_mini"  # stands for the images in this package
FOLDED = "hide-input"  # the tag of a cell whose code pages and notebooks fold, as of claims
ANSWER = "answer"  # the tag of a cell that runs only with --answers
current: Path | None = None  # the script whose cells run in this process
begun: Recorder | None = None  # the section that this script has begun
_HEAD = re.compile(r"# %%(?: \[(markdown)\])?(?: tags=(\[.*\]))?")


@dataclass(frozen=True)
class Cell:
    """One cell: its text, the line of the script that it begins at, and its tags."""

    source: str
    line: int
    markdown: bool = False
    tags: tuple[str, ...] = ()

    def run(self, path: Path, namespace: dict[str, Any]) -> None:
        exec(compile("\n" * (self.line - 1) + self.source, path, "exec", dont_inherit=True), namespace)

    def node(self) -> Any:
        metadata: dict[str, Any] = {"line": self.line} | ({"tags": list(self.tags)} if self.tags else {})
        if FOLDED in self.tags:
            metadata |= {"jupyter": {"source_hidden": True}, "cellView": "form"}  # of Jupyter, and of Colab
        if not self.markdown:
            return v4.new_code_cell(self.source, metadata=metadata)
        tabs = re.sub(r"^:{3,}\{tab-item\} (.*)$", r"**\1**", self.source, flags=re.M)  # headings, where
        plain = re.sub(r"^:{3,}.*\n?", "", tabs, flags=re.M)  # no notebook knows the book's tabs
        return v4.new_markdown_cell(plain, metadata=metadata)


def read(path: Path) -> list[Cell]:
    """Return the cells of a script; what comes before the first is left out."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as e:
        raise JaxperfError(f"cannot read {path}: {getattr(e, 'strerror', None) or e}") from None
    starts = [i for i, line in enumerate(lines) if line.startswith("# %%")]
    cells = []
    for start, end in zip(starts, [*starts[1:], len(lines)]):
        head = _HEAD.fullmatch(lines[start].rstrip())
        if not head:
            raise JaxperfError(f"{path}, line {start + 1}: {lines[start]!r} begins no cell")
        body = lines[start + 1 : end]
        if head[1]:
            body = [line.removeprefix("#").removeprefix(" ") for line in body]
        tags = tuple(ast.literal_eval(head[2] or "()"))
        cells.append(Cell("\n".join(body).rstrip(), start + 2, bool(head[1]), tags))
    return cells


def load(path: Path, *arguments: str, without: Collection[str] = ("slow", ANSWER)) -> ModuleType:
    """Run a script's cells, except those that have a tag of `without`, and return its names as a module."""
    global current
    module, before = ModuleType(path.stem), sys.argv
    module.__file__ = str(path)
    sys.argv, current = [str(path), *arguments], path
    try:
        for cell in read(path):
            if not cell.markdown and not {*cell.tags} & {*without}:
                cell.run(path, vars(module))
    finally:
        sys.argv, current = before, None
    return module


def main(path: Path, options: Any) -> int:
    """Run a script as Python would, but cell by cell; return the exit status.

    It is 1 if a cell failed, 2 for a user's mistake, 130 after Ctrl-C. The result and the notebook are then
    those of the other cells; after Ctrl-C they are next to their final paths, and marked incomplete.
    """
    follow_parent()
    end_at_once()

    def run_all() -> int:
        run = CellRun(path, options)
        with forced_end(run.keep_incomplete):
            return run.all()

    return ended(run_all)


class CellOutput(io.TextIOBase):
    """Standard output that prints each line at once, and keeps it in `outputs`, those of the running cell."""

    def __init__(self, terminal: TextIO) -> None:
        self.outputs: list[Any] = []
        self._rest = ""
        self._console = Console(file=terminal, highlight=False, soft_wrap=True)

    def text(self, source: str, *, first: bool = False) -> None:
        """Print the headings of a Markdown cell, and of the first cell also the question."""
        for line in source.split("\n"):
            if re.match("#+ ", line) or (first and line.strip()):
                self._console.out(line, style="bold" if line.startswith("#") else None)

    def write(self, text: str) -> int:
        if not self.outputs or self.outputs[-1].output_type != "stream":
            self.outputs.append(v4.new_output("stream", name="stdout"))
        self.outputs[-1].text += text
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._console.out(line)
        return len(text)

    def show(self, item: display.Shown) -> None:
        """Print a table, claim or figure, and keep it in the forms that notebooks show."""
        self.outputs.append(v4.new_output("display_data", data=display.bundle(item)))
        with contextlib.redirect_stdout(self._console.file):
            display.on_terminal(item)


class CellRun:
    """A run of a script's cells, and what is kept of it."""

    def __init__(self, path: Path, options: Any) -> None:
        self.files = [file for file in (options.json, options.notebook) if file]
        for file in self.files:
            check_writable(file)
        self.path, self.options, self.cells = path, options, read(path)
        self.nodes: list[Any] = []
        self.output = CellOutput(sys.stdout)
        self.failures = 0
        self.load = OtherLoad()

    def all(self) -> int:
        global current, begun
        module = sys.modules["__main__"] = ModuleType("__main__")
        module.__file__ = str(self.path)
        current, begun, display.printer = self.path, None, self.output.show
        try:
            with (
                contextlib.redirect_stdout(self.output),
                watch_compilation() as log,
                other_load() as self.load,
            ):
                for number, cell in enumerate(self.cells, 1):
                    self._run(number, cell, vars(module))
        except BaseException:
            self.keep_incomplete()
            raise
        self._add_costs(log)
        self._keep()
        if not self.options.json:
            print("nothing was kept; --json FILE keeps the measurements, --notebook FILE the notebook")
        return FAILED if self.failures else 0

    def _add_costs(self, log: CompileLog) -> None:
        """Print and keep who else used the machine, and how long compiling took, apart from all else."""
        if not begun:
            return
        if self.load.busy:
            note = f"{self.load} meanwhile, so times are noisy"
            print(f"note: {note}")
            begun.blocks.append(Note(note))
        if not log.programs:
            return
        compiled = f"{log.programs} programs compiled in {log.compile_s:.1f} s"
        print(f"{compiled}; the section took {begun.result().wall_s:.1f} s")
        budget = getattr(begun, "programs", 0)
        if 0 < budget < log.programs and not self.options.answers:
            say(f"note: the section plans to compile {budget} programs at most")
        begun.blocks += [
            Fact("programs_compiled", log.programs, "", "programs that XLA compiled"),
            Fact("compile_s", log.compile_s, "s", "compiling them, added up over threads"),
        ]

    def keep_incomplete(self) -> None:
        """Write what there is until now, marked incomplete, and remove half-written files."""
        self._keep(incomplete=True)
        for file in self.files:
            for part in file.resolve().parent.glob(".*.part"):
                if part.name.startswith(f".{file.stem[:20]}"):
                    part.unlink(missing_ok=True)

    def _run(self, number: int, cell: Cell, namespace: dict[str, Any]) -> None:
        self.nodes.append(node := cell.node())
        if cell.markdown:
            self.output.text(cell.source, first=number == 1)
            return
        if ANSWER in cell.tags and not self.options.answers:
            return
        self.output.outputs = node.outputs
        node.execution_count = number
        try:
            cell.run(self.path, namespace)
        except BaseException as e:
            name, line = type(e).__name__, to_one_line(f"{type(e).__name__}: {e}")
            node.outputs.append(v4.new_output("error", ename=name, evalue=str(e), traceback=[line]))
            ends = not isinstance(e, Exception) or isinstance(e, BrokenPipeError)
            if ends or begun is None:  # without a section, nothing can run
                raise
            self._add_failure(begun, cell, e)
        if begun and self.options.json:
            save_so_far(begun.result(), self.options.json)

    def _add_failure(self, section: Recorder, cell: Cell, error: BaseException) -> None:
        """Report a cell that raised: its traceback from the script's own line on."""
        self.failures += 1
        message = to_one_line(first_line(error, with_class=True))
        follows = isinstance(error, NameError) and self.failures > 1  # of a cell that failed before
        if not isinstance(error, JaxperfError) and not follows:
            frames = error.__traceback__.tb_next.tb_next if error.__traceback__ else None  # type: ignore
            traceback.print_exception(type(error), error, frames)
        section.add(Failed(f"{self.path.name}, line {cell.line}", message))

    def _keep(self, *, incomplete: bool = False) -> None:
        if not begun:
            return
        options, result = self.options, begun.result()
        if options.json:
            (save_so_far if incomplete else save_result)(result, options.json)
        if options.notebook:
            about = {
                "environment": asdict(result.environment),
                "config": {name: str(value) for name, value in result.config.items()},
                "options": [name for name in ("smoke", "full", "answers") if getattr(options, name)],
                "command": result.command,
                "started_at": result.started_at,
                "wall_s": round(result.wall_s, 1),
                "busy": str(self.load) if self.load.busy else "",
                "incomplete": incomplete,
                "turned": bool(recorder.turned),
                "modules": modules(),
            }
            address = notebooks.repository()
            resolve = notebooks.resolve_in_checkout(options.notebook, address)
            notebook = notebooks.finish(copy.deepcopy(self.nodes), self.path, resolve, address, jaxperf=about)
            path = so_far(options.notebook) if incomplete else options.notebook
            write_whole(path, nbformat.writes(notebook) + "\n")
            if not incomplete:
                so_far(options.notebook).unlink(missing_ok=True)
        if incomplete and options.json:
            say(f"result so far, incomplete: {so_far(options.json)}")


def modules() -> dict[str, str]:
    """Return digests of this package's loaded modules and of its images: a page tells what has changed."""
    digests = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.startswith("jaxperf.") and file:
            digests[name] = digest(Path(file))
    if "jaxperf.data" in digests:
        digests[MINI] = digest(Path(__file__).parents[1] / "fashion_mnist_mini" / "SHA256SUMS")
    return digests


def digest(path: Path) -> str:
    """Return twelve digits of the SHA-256 of a file; "" if it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else ""
