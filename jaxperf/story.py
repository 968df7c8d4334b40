"""A section tells its story: each block is printed at once and kept, in order, for the result.

story.heading("8.4.3 Synchronizing data among devices")
story.text("Every device holds a copy of the parameters. ...")
story.code(allreduce)
with story.output():
    print(allreduce(data))
story.table(rows, base="one device", references=BOOK)
story.claim(book="...", holds=ratio.at_most(1.2), predicted="...", right=ratio.below(1), observed=str(ratio))
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import inspect
import io
import math
import shlex
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.progress import track

from jaxperf import catalogue
from jaxperf.errors import JaxperfError
from jaxperf.report import story as report
from jaxperf.report import terminal
from jaxperf.result import (
    Axis,
    Block,
    Claim,
    Code,
    Curve,
    Decision,
    Dots,
    Environment,
    Fact,
    Failed,
    Grid,
    Habit,
    Heading,
    Lines,
    Measurement,
    Note,
    Output,
    Peers,
    Reference,
    Result,
    Table,
    Text,
    Timeline,
    Timelines,
)
from jaxperf.result.store import save_so_far

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]


class Story:
    """Collects a section's blocks and prints them: a short log, or with `verbose` everything.

    Args:
      section: which section is told.
      environment: where it runs.
      config: the section's own settings, and the number of devices under "devices".
      smoke: whether it runs at toy sizes.
      verbose: print text, code, facts and figures too.
      keep: the result's file; raw traces go next to it. None keeps none.
      show: how to show each item; a notebook has its own way.
      command: the command that repeats the run; by default the section's script with this process's flags.
    """

    def __init__(
        self,
        section: catalogue.Section,
        environment: Environment,
        config: Mapping[str, Any],
        *,
        smoke: bool = False,
        verbose: bool = False,
        keep: Path | None = None,
        show: Callable[..., None] = terminal.show,
        command: str = "",
    ) -> None:
        self.section, self.environment, self.config = section, environment, config
        self._command = command or shlex.join(["python", f"experiments/{section.name}.py", *sys.argv[1:]])
        self.smoke, self.verbose, self.keep = smoke, verbose, keep
        self.kept: Path | None = None  # where the result so far is
        self.blocks: list[Block] = []
        self._show = show
        self._part = ""
        self._console = terminal.console()
        self._script = _source_of(section)
        self._began = time.perf_counter()
        self._started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        terminal.head(self._console, self.result())

    @property
    def devices(self) -> int:
        """How many devices the section uses."""
        return int(self.config["devices"])

    @property
    def device_counts(self) -> tuple[int, ...]:
        """On how many devices to train: one, then all; several processes train only on all."""
        return tuple(sorted({self.devices if self.processes > 1 else 1, self.devices}))

    @property
    def processes(self) -> int:
        """How many processes run the section together, each telling the same story."""
        return int(self.config.get("processes", 1))

    @property
    def first_process(self) -> bool:
        """Whether this is the process that writes the result."""
        if self.processes == 1:
            return True
        import jax

        return jax.process_index() == 0

    @property
    def facts(self) -> dict[str, Any]:
        """The facts told so far, by name."""
        return {b.name: b.value for b in self.blocks if isinstance(b, Fact)}

    @property
    def failed(self) -> bool:
        """Whether a part has failed."""
        return any(isinstance(b, Failed) for b in self.blocks)

    @property
    def traces(self) -> Path | None:
        """Folder for raw traces, next to the result; None if the result is not kept."""
        return self.keep and self.keep.with_name(f"{self.keep.stem}-traces")

    def part(self, tell: Callable[..., T], *args: Any, **options: Any) -> T | None:
        """Run `tell(self, *args, **options)`; after an error in it, the section continues with the next part.

        In any case, what has been told so far is then saved, marked incomplete. With several processes, one
        that continued alone would wait for the others forever, so it ends.

        Returns:
          What `tell` returns; None if it failed.
        """
        self._part = tell.__name__
        try:
            return tell(self, *args, **options)
        except BrokenPipeError:  # nobody reads the output any more
            raise
        except Exception as e:
            if self.processes > 1:
                raise
            said = str(e).strip().splitlines() or [""]
            if said[0].startswith("RESOURCE_EXHAUSTED"):  # a device's memory; XLA's tables may follow
                said = [f"{said[0]}; {_smaller(self.config)}"]
            elif not isinstance(e, JaxperfError):
                traceback.print_exc()
            self.add(Failed(self._part, f"{type(e).__name__}: {said[-1]}"))
        finally:
            self._part = ""
            self._keep_so_far()
        return None

    def _keep_so_far(self) -> None:
        """Write what has been told; if that fails, the run continues, and its end reports the error."""
        if self.keep is None or (self.keep.exists() and not self.keep.is_file()):  # /dev/stdout, a pipe
            return
        if not self.first_process:
            return
        try:
            self.kept = save_so_far(self.result(), self.keep)
        except JaxperfError as e:
            print(f"warning: {e}", file=sys.stderr)

    def part_of_one_process(self, tell: Callable[..., T], *args: Any, **options: Any) -> T | None:
        """Run `part`; with several processes, only say that it is left out.

        It is for what one process does alone, such as copying to every device, and for timing: each process
        would choose by its own clock how often to call a program that all must call together.
        """
        if self.processes == 1:
            return self.part(tell, *args, **options)
        self.say(f"left out with {self.processes} processes: {tell.__name__.replace('_', ' ')}")
        return None

    def add(self, block: Block) -> None:
        """Keep a block and print it."""
        self.blocks.append(block)
        for item in report.items(block, self.result(), brief=not self.verbose):
            self._show(self._console, item, verbose=self.verbose)

    def heading(self, title: str) -> None:
        """Begin a part with its title."""
        self.add(Heading(title, self._part))

    def text(self, *paragraphs: str) -> None:
        """Add paragraphs of prose, in which words between backticks are code."""
        for paragraph in paragraphs:
            self.add(Text(" ".join(paragraph.split())))

    def habit(self, *, gluon: str, jax: str, remark: str = "") -> None:
        """Name what a reader writes in Gluon, and its counterpart in JAX."""
        self.add(Habit(_dedented(gluon), _dedented(jax), remark))

    def code(self, *functions: Callable[..., Any] | type) -> None:
        """Show the source of functions or classes as they ran."""
        for fn in functions:
            fn = inspect.unwrap(fn)
            lines, number = inspect.getsourcelines(fn)
            path = Path(inspect.getsourcefile(fn) or "")
            file = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(path.name)
            self.add(Code(_dedented("".join(lines)), file.as_posix(), number))

    @contextlib.contextmanager
    def output(self, *, detail: bool = False) -> Iterator[None]:
        """Keep what is printed inside next to the code; `detail` keeps it out of the short log."""
        with contextlib.redirect_stdout(_Lines(lambda line: self.say(line, detail=detail))) as lines:
            yield
        lines.end()

    def say(self, line: str, *, detail: bool = False) -> None:
        """Print a line of output and keep it with the lines before it."""
        last = self.blocks[-1] if self.blocks else None
        if isinstance(last, Output) and last.detail == detail:
            self.blocks[-1] = Output(f"{last.text}\n{line}", detail)
            self._show(self._console, Output(line, detail), verbose=self.verbose)
        else:
            self.add(Output(line, detail))

    def progress(self, items: Iterable[T], total: int) -> Iterable[T]:
        """Iterate over `items`, `total` of them, with a bar that is erased at the end (none when piped)."""
        if not self._console.is_terminal:
            return items
        return track(items, total=total, console=self._console, transient=True, description="")

    def table(
        self,
        rows: Iterable[Measurement],
        *,
        title: str = "",
        base: str = "",
        references: Sequence[Reference] = (),
        bars: Literal["", "bars", "stacked"] = "",
        key: Sequence[str] = (),
        detail: bool = False,
    ) -> None:
        """Show measurements as rows; the options are `Table`'s.

        Raises:
          ValueError: two rows have the same name, or no row has the name in `base` or `key`.
        """
        found = tuple(rows)
        names = [m.name for m in found]
        if len(set(names)) < len(names) or not {*([base] if base else []), *key} <= set(names):
            raise ValueError(f"table {title!r}: rows {names}, base {base!r}, key {list(key)}")
        self.add(Table(title, found, base, tuple(references), bars, tuple(key), detail))

    def grid(
        self,
        heads: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        title: str = "",
        right: Sequence[int] = (),
        detail: bool = False,
    ) -> None:
        """Show a table of words; columns `right` are aligned right."""
        self.add(Grid(title, tuple(heads), tuple(map(tuple, rows)), tuple(right), detail))

    def lines(
        self,
        title: str,
        curves: Iterable[Curve],
        *,
        x: Axis,
        y: Axis,
        caption: str = "",
        mark: tuple[str, float, float] | None = None,
        zero: bool = False,
        panels: bool = False,
    ) -> None:
        """Draw curves over a common x; NaN is kept as a missing point, since JSON has none."""
        kept = tuple(dataclasses.replace(c, y=tuple(map(_finite, c.y))) for c in curves)
        word, at = (mark[0], mark[1:]) if mark else ("", ())
        self.add(Lines(title, kept, x, y, caption, at, word, zero, panels))

    def dots(self, title: str, rows: Iterable[Measurement], *, caption: str = "") -> None:
        """Draw a row of dots per measurement, for a few values each."""
        self.add(Dots(title, tuple(rows), caption))

    def timeline(self, *runs: Timeline, title: str, caption: str = "") -> None:
        """Draw runs as Gantt charts over one time axis."""
        self.add(Timelines(title, runs, caption))

    def fact(self, name: str, value: Any, *, unit: str = "", words: str = "") -> None:
        """Keep a named scalar; `words` say what it is. A value that is not finite is kept as None."""
        plain = value.item() if hasattr(value, "item") else value
        self.add(Fact(name, _finite(plain) if isinstance(plain, float) else plain, unit, words))

    def claim(
        self,
        *,
        holds: Decision,
        predicted: str,
        right: Decision,
        observed: str,
        book: str = "",
        ours: str = "",
        cannot: str = "",
    ) -> None:
        """Give a sentence its verdict, and our prediction its own.

        Args:
          holds: whether the sentence holds here; None if the measurement cannot decide it.
          predicted: what we expected before measuring.
          right: whether the prediction was right; None if undecided.
          observed: what was seen.
          book, ours: the sentence, as one of the book's or as ours; give one of the two.
          cannot: why nothing could be measured here, which replaces all verdicts; "" if it could.
        """
        number = self.section.number
        source = (f"section {number}" if number else "the book") if book else "jaxperf"
        if cannot:
            claim = Claim(book or ours, "cannot be measured here", predicted, "undecided", cannot, source)
        else:
            sentence: Any = {True: "holds", False: "does not hold", None: "undecided"}[_plain(holds)]
            came: Any = {True: "right", False: "wrong", None: "undecided"}[_plain(right)]
            claim = Claim(book or ours, sentence, predicted, came, observed, source)
        self.add(claim)

    def note(self, remark: str) -> None:
        """Keep a remark that readers of the figures must know."""
        self.add(Note(remark))

    def peers(self, workload: str) -> None:
        """Say that other systems' figures for this workload belong here."""
        self.add(Peers(workload))

    def data_source(self, source: str) -> None:
        """Record where the images came from."""
        self.environment = dataclasses.replace(self.environment, data_source=source)

    def result(self) -> Result:
        """Everything told so far."""
        return Result(
            experiment=self.section.name,
            section=self.section.number,
            title=self.section.title,
            question=self.section.question,
            config=self.config,
            environment=self.environment,
            blocks=tuple(self.blocks),
            script=self._script,
            command=self._command,
            smoke=self.smoke,
            started_at=self._started_at,
            wall_s=time.perf_counter() - self._began,
        )


class _Lines(io.TextIOBase):
    """A text stream that passes on complete lines."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take, self._rest, self._outside = take, "", sys.stdout

    def write(self, words: str) -> int:
        *lines, self._rest = (self._rest + words).split("\n")
        with contextlib.redirect_stdout(self._outside):  # print captured lines without capturing them again
            for line in lines:
                self._take(line)
        return len(words)

    def end(self) -> None:
        if self._rest:
            self.write("\n")


def _source_of(section: catalogue.Section) -> str:
    """The source of the section's script, if that is what runs."""
    running = Path(sys.modules["__main__"].__dict__.get("__file__") or "")
    return running.read_text(encoding="utf-8") if running.stem == section.name else ""


def _smaller(config: Mapping[str, Any]) -> str:
    size = config.get("batch_size")
    return f"the batch size was {size}, give a smaller --batch-size" if size else "give smaller sizes"


def _dedented(code: str) -> str:
    return textwrap.dedent(code).strip("\n")


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _plain(decision: Decision) -> Decision:
    return None if decision is None else bool(decision)  # NumPy's and JAX's bools are other types
