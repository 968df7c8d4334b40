"""What every section's script shares: its flags, its story told as it goes, its result written at the end.

FLAGS = script.parse(Config) if __name__ == "__main__" else None   # before JAX is imported
...
def main(config: Config, story: Story) -> None: ...
if __name__ == "__main__":
    script.run(main, FLAGS)
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NoReturn, TypeVar

import tyro
from rich.progress import track

from jaxperf import catalogue, flags
from jaxperf.errors import JaxperfError
from jaxperf.measure.record import (
    Claim,
    Environment,
    Measurement,
    Reference,
    Result,
    Scalar,
    Series,
    Timeline,
)
from jaxperf.measure.store import check_writable, save_result
from jaxperf.report import gantt, text

C = TypeVar("C")
T = TypeVar("T")
USER_MISTAKE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141


@dataclass(frozen=True)
class Flags(Generic[C]):
    """What the command line said: the experiment's own `config` and the flags that all scripts share."""

    config: Annotated[C, tyro.conf.OmitArgPrefixes]
    json: Path | None = None
    """Write the result here as JSON."""
    smoke: bool = False
    """Run in seconds: every part, at toy sizes; its times mean nothing."""
    devices: int = 1
    """How many devices to use; on a CPU, how many to make of it."""
    platform: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to run; auto takes a GPU if JAX finds one."""


def parse(kind: type[C], *, devices: int = 1) -> Flags[C]:
    """Read the command line of the running script and prepare the process: call it before importing JAX.

    Args:
      kind: the script's frozen `Config` dataclass; a static method `smoke()` gives the values for `--smoke`.
      devices: how many devices the script uses unless told otherwise.

    A mistake in a flag ends the process with one line and status 2.
    """
    prog = Path(sys.argv[0]).name
    smoke = "--smoke" in sys.argv[1:]
    try:
        config = kind.smoke() if smoke else kind()  # type: ignore[attr-defined]
        found: Flags[C] = flags.parse(
            Flags[kind],  # type: ignore[valid-type]
            args=sys.argv[1:],
            default=Flags(config=config, devices=devices),
            prog=prog,
            description=(sys.modules["__main__"].__doc__ or "").strip().split("\n\n")[0],
        )
        prepare(devices=found.devices, platform=found.platform)
        if found.json:
            check_writable(found.json)  # better now than after an hour
    except JaxperfError as e:
        fail(e)
    return found


def prepare(*, devices: int, platform: str) -> None:
    """Set what JAX reads when it is imported: the platform, and the number of CPU devices.

    Raises:
      JaxperfError: `devices` is not positive.
    """
    if devices < 1:
        raise JaxperfError(f"--devices is {devices}; a program needs at least 1 device")
    if platform != "auto":
        os.environ["JAX_PLATFORMS"] = {"cpu": "cpu", "gpu": "cuda,cpu"}[platform]  # the host is a device too
    os.environ["JAX_NUM_CPU_DEVICES"] = str(devices)


def fail(error: JaxperfError) -> NoReturn:
    """End the process for a user's mistake: one line on standard error, status 2."""
    sys.stdout.flush()
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(USER_MISTAKE)


def run(main: Callable[[C, Story], None], found: Flags[C] | None) -> None:
    """Run `main(config, story)`, print what it tells, write the result; the last line says where it went."""
    assert found is not None, "script.parse comes first"
    try:
        story = Story(catalogue.find(Path(sys.argv[0]).stem), found)
        main(found.config, story)
        result = story.result()
        if found.json:
            save_result(result, found.json)
        print(f"result: {found.json}" if found.json else "result: not kept; give --json PATH to keep it")
        sys.stdout.flush()
    except JaxperfError as e:
        fail(e)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:  # the reader has gone, e.g. `| head`; nothing more can be said
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(PIPE_CLOSED) from None


def _with_what_is_there(found: Flags[Any], environment: Environment) -> Flags[Any]:
    """A script's own number of devices is a wish, and one GPU must do; what `--devices` says is none."""
    there = len(environment.devices)
    if any(word.split("=")[0] == "--devices" for word in sys.argv) or found.devices <= there:
        return found
    return dataclasses.replace(found, devices=there)


def _environment() -> Environment:
    """This process's environment; JaxperfError where JAX cannot start on the platform it was told to use."""
    from jaxperf.measure.environment import current_environment

    wanted = os.environ.get("JAX_PLATFORMS") or "any platform"
    gpu = wanted.startswith("cuda")
    missing = "GPU" if gpu else f"device for {wanted}"
    nothing = f"JAX finds no {missing}; use --platform cpu, or see `jaxperf doctor`"
    try:
        found = current_environment()
    except (RuntimeError, AssertionError):
        raise JaxperfError(nothing) from None
    if gpu and found.backend != "gpu":  # JAX takes the next of the list without a word
        raise JaxperfError(nothing)
    return found


class Story:
    """Tells a section in the book's order on standard output and collects what it told into a `Result`."""

    def __init__(self, section: catalogue.Section, found: Flags[Any]) -> None:
        self.environment: Environment = _environment()
        self.section, self.flags = section, _with_what_is_there(found, self.environment)
        self.measurements: list[Measurement] = []
        self.series: list[Series] = []
        self.timelines: list[Timeline] = []
        self.facts: dict[str, Scalar] = {}
        self.claims: list[Claim] = []
        self.references: list[Reference] = []
        self.notes: list[str] = []
        self._console = text.console()
        self._began = time.perf_counter()
        self._started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.heading(f"{section.number} {section.title}".strip())
        self.say(section.question)
        for line in text.environment_lines(self.result()):
            self.say(line)
        if found.smoke:
            self.note("--smoke: toy sizes, the times mean nothing")

    def heading(self, title: str) -> None:
        """Begin a part, with a line of its own."""
        self._part = title
        self._console.print()
        self._console.rule(text.literal(title, style="bold"), align="left")

    def say(self, line: str) -> None:
        """Print text as it is."""
        self._console.print(text.literal(line), soft_wrap=True)

    def progress(self, items: Iterable[T], total: int) -> Iterable[T]:
        """Go through `items`, `total` of them, with a bar that leaves nothing behind (none when piped)."""
        if not self._console.is_terminal:
            return items
        return track(items, total=total, console=self._console, transient=True, description="")

    def note(self, remark: str) -> None:
        """Print a remark and keep it in the result."""
        self.notes.append(remark)
        self.say(f"note: {remark}")

    def measured(
        self,
        *measurements: Measurement,
        references: Sequence[Reference] = (),
        base: str | None = None,
        title: str = "",
    ) -> None:
        """Keep measurements and show them as a table, the book's figures at the side (or below)."""
        group = ": ".join(filter(None, [self._part, title]))
        self.measurements += (dataclasses.replace(m, group=group, base=base or "") for m in measurements)
        self.references += references
        self._console.print(text.table(measurements, references=references, base=base, title=title))
        shown = {m.name for m in measurements}
        for reference in references:
            if reference.beside not in shown:
                self._console.print(text.reference_line(reference), soft_wrap=True)

    def curve(self, series: Series) -> None:
        """Keep a curve for the report; prints nothing. NaN is kept as None, since JSON has none."""
        y = tuple(None if value is None or not math.isfinite(value) else value for value in series.y)
        self.series.append(dataclasses.replace(series, y=y))

    @property
    def traces(self) -> Path | None:
        """Folder for raw traces, beside the result; None where the result is not kept."""
        return self.flags.json and self.flags.json.with_name(f"{self.flags.json.stem}-traces")

    def timeline(self, timeline: Timeline) -> None:
        """Keep a timeline and show it as a Gantt chart, with the way to open the raw trace if it was kept."""
        self.timelines.append(timeline)
        self.say(gantt.text(timeline, width=min(self._console.width, gantt.WIDTH)))
        if timeline.trace:
            self.say(f'raw trace: {timeline.trace}; open it at https://ui.perfetto.dev, "Open trace file"')

    def fact(self, name: str, value: Any, *, unit: str = "", show: bool = True) -> None:
        """Keep a named scalar and print it; `unit` is for the eye, the name carries it."""
        plain: Scalar = value.item() if hasattr(value, "item") else value
        finite = not isinstance(plain, float) or math.isfinite(plain)
        self.facts[name] = plain if finite else None  # JSON has no NaN
        if show:
            self.say(f"{name} = {text.scalar(plain, unit)}")

    def claim(self, statement: str, *, predicted: str, observed: str, held: bool | None) -> None:
        """Judge a sentence of the chapter, held or not, and print the verdict."""
        held = None if held is None else bool(held)  # NumPy's and JAX's truths are other types
        claim = Claim(statement, predicted, observed, held, source=f"section {self.section.number}".strip())
        self.claims.append(claim)
        self._console.print(text.claim_line(claim))

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
            config={**dataclasses.asdict(self.flags.config), "devices": self.flags.devices},
            environment=self.environment,
            measurements=tuple(self.measurements),
            series=tuple(self.series),
            timelines=tuple(self.timelines),
            facts=dict(self.facts),
            claims=tuple(self.claims),
            references=tuple(self.references),
            notes=tuple(self.notes),
            command=shlex.join(["python", f"experiments/{self.section.name}.py", *sys.argv[1:]]),
            smoke=self.flags.smoke,
            started_at=self._started_at,
            wall_s=time.perf_counter() - self._began,
        )
