"""What all section scripts share: flags, the story, and the result written at the end.

FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None  # before JAX is imported
...
def main(config: Config, story: Story) -> None: ...

if __name__ == "__main__":
    script.run(main, FLAGS)
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import tyro

from jaxperf import catalogue, flags, onednn
from jaxperf.errors import JaxperfError, one_line
from jaxperf.exits import FAILED, USER_MISTAKE, end_at_once, ended, say
from jaxperf.flags import at_least, between
from jaxperf.orphans import follow_parent
from jaxperf.processes import Processes, end_together, only_the_first_speaks, start
from jaxperf.report import terminal
from jaxperf.report.notebook import live
from jaxperf.result import Environment, save_result
from jaxperf.result.store import check_writable
from jaxperf.story import Story

if TYPE_CHECKING:
    from jaxperf.train import CheckpointFolder

C = TypeVar("C")

__all__ = ["Data", "Flags", "Saving", "Story", "chosen", "notebook", "parse", "prepare", "run"]


@dataclass(frozen=True)
class Flags(Generic[C]):
    """What the command line said: the section's own `config` and the flags that all scripts share."""

    config: Annotated[C, tyro.conf.OmitArgPrefixes]
    json: Path | None = None  # write the result here as JSON
    smoke: bool = False  # run in seconds: every part, at toy sizes; its times mean nothing
    verbose: bool = False  # print text, code, facts and figures too, not only the short log
    devices: Annotated[int, between(1, 1024)] = 1  # how many to use; on a CPU, how many to split it into
    platform: Literal["auto", "cpu", "gpu"] = "auto"  # where to run; auto takes a GPU if JAX finds one
    processes: Annotated[Processes, tyro.conf.OmitArgPrefixes] = field(default_factory=Processes)


@dataclass(frozen=True)
class Data:
    """Flags of the sections that read images."""

    data_source: Literal["auto", "folder", "tfds", "download", "mini"] = "auto"
    """Where Fashion-MNIST comes from; auto takes the first source that works."""
    data_folder: Path | None = None
    """Folder of the four IDX files."""

    def check(self) -> None:
        """Raise a JaxperfError if this source cannot be read, before JAX starts, which takes seconds."""
        from jaxperf.data import check_source  # imports NumPy, which other sections need not load here

        check_source(self.data_source, self.data_folder)


@dataclass(frozen=True)
class Saving:
    """Flags of the sections that train; nothing is saved without a folder."""

    checkpoints: Path | None = None
    """Folder to save the training in while it runs."""
    every_steps: Annotated[int, at_least(0)] = 100
    """Save after each so many updates; 0: at the end of an epoch only."""
    every_s: Annotated[float, at_least(0)] = 0
    """Save once so many seconds have passed; 0: by updates only."""
    keep: Annotated[int, at_least(1)] = 3
    """How many checkpoints of a training to keep, the newest."""
    resume: bool = False
    """Go on from the newest checkpoint in the folder, if there is one."""

    def __post_init__(self) -> None:
        if self.resume and not self.checkpoints:
            raise JaxperfError("--resume is given without a folder; add --checkpoints DIR")

    def check(self) -> None:
        """Check the folder before any work is done; see `folder`."""
        with self.folder():
            pass

    def folder(self) -> contextlib.AbstractContextManager[CheckpointFolder | None]:
        """The folder, opened by `with`; None if there is none.

        Raises:
          JaxperfError: as `CheckpointFolder`, on entering.
        """
        if not self.checkpoints:
            return contextlib.nullcontext()
        from jaxperf.train import CheckpointFolder, Policy

        policy = Policy(self.every_steps, self.every_s, self.keep)
        return CheckpointFolder(self.checkpoints, policy, resume=self.resume)


def parse(kind: type[C], *, devices: int = 1) -> Flags[C]:
    """Read the command line of the running script, prepare the process and import JAX.

    A mistake in a flag, or a setting that JAX rejects, ends the process with one line and status 2. From here
    until `run`, Ctrl-C ends it at once.

    Args:
      kind: the script's frozen `Config` dataclass; a static method `smoke()` gives the values for `--smoke`.
      devices: how many devices the script uses unless told otherwise.
    """
    follow_parent()
    end_at_once()
    found: list[Flags[C]] = []

    def read() -> int:
        config = kind.smoke() if "--smoke" in sys.argv[1:] else kind()  # type: ignore[attr-defined]
        found.append(
            flags.parse(
                Flags[kind],  # type: ignore[valid-type]
                args=sys.argv[1:],
                default=Flags(config=config, devices=devices),
                prog=Path(sys.argv[0]).name,
                description=(sys.modules["__main__"].__doc__ or "").strip().split("\n\n")[0],
            )
        )
        for settings in vars(found[0].config).values():
            if isinstance(settings, Data):
                settings.check()
        together = found[0].processes
        if together.several and not chosen("devices"):
            found[0] = dataclasses.replace(found[0], devices=1)  # each process contributes one
        prepare(devices=found[0].devices, platform=found[0].platform)
        if found[0].json and not together.process_id:  # the others write nothing
            check_writable(found[0].json)  # better now than after an hour
        start(together)
        return 0

    if status := ended(read):
        raise SystemExit(status)
    import_jax()
    return found[0]


def import_jax() -> None:
    """Import JAX before the script does: a setting that it rejects (JAX_ENABLE_X64=maybe) gives one line."""
    try:
        importlib.import_module("jax")
    except Exception as e:
        reason = " ".join(str(e).split()) or type(e).__name__
        say(f"error: JAX cannot be imported: {reason}; `jaxperf doctor` says why")
        raise SystemExit(USER_MISTAKE) from None


def prepare(*, devices: int, platform: str) -> None:
    """Set what JAX reads when it is imported: the platform, and the number of CPU devices."""
    if platform != "auto":
        os.environ["JAX_PLATFORMS"] = {"cpu": "cpu", "gpu": "cuda,cpu"}[platform]  # the host is a device too
    os.environ["JAX_NUM_CPU_DEVICES"] = str(devices)


def run(main: Callable[[C, Story], None], found: Flags[C] | None) -> None:
    """Run `main(config, story)`, print what it tells, write the result; the last line says where it went.

    The exit status is 1 if a part failed; the result then holds the other parts. A run that is stopped leaves
    what it has found so far, marked incomplete.
    """
    assert found is not None, "script.parse comes first"

    def tell() -> int:
        story = begin(catalogue.find(Path(sys.argv[0]).stem), found)
        try:
            main(found.config, story)
        except BaseException:
            if story.kept:
                say(f"result so far, incomplete: {story.kept}")
            raise
        if found.json and story.first_process:
            save_result(story.result(), found.json)
        print(one_line(f"result: {found.json or 'not kept; give --json PATH to keep it'}"))
        return FAILED if story.failed else 0

    if not found.processes.several:
        raise SystemExit(ended(tell))
    import jax

    with only_the_first_speaks(jax.process_index()):
        status = end_together(tell)
    raise SystemExit(status)


def begin(
    section: catalogue.Section, found: Flags[Any], *, show: Callable[..., None] = terminal.show
) -> Story:
    """The story of a section with these flags.

    A default number of devices is reduced to what exists; an explicit one is not. Several processes use all
    of their devices.

    Raises:
      JaxperfError: JAX cannot start on the requested platform, or the processes were started with different
        flags or versions.
    """
    onednn.begin()
    found_here = environment()
    devices = found.devices if chosen("devices") else min(found.devices, len(found_here.devices))
    config = {**dataclasses.asdict(found.config), "devices": devices}
    if found.processes.several:
        from jaxperf.parallel.several import check_same

        config |= {
            "devices": len(found_here.devices),
            "processes": check_same((config, found_here.versions)),
        }
    told: dict[str, Any] = {"smoke": found.smoke, "verbose": found.verbose}
    return Story(section, found_here, config, **told, keep=found.json, show=show)


def notebook(
    name: str, config: Any, *, devices: int = 1, smoke: bool = False, platform: str = "auto"
) -> Story:
    """The story of a section in a notebook; call it before importing JAX.

    Args:
      name: the section's name.
      config: its settings, as the script's `Config`.
      devices: how many devices to use; on a CPU, how many to split it into.
      smoke: whether the settings are toy sizes.
      platform: "cpu" or "gpu"; "auto" takes a GPU if JAX finds one.

    Raises:
      JaxperfError: no section is called `name`, or JAX cannot start.
    """
    section = catalogue.find(name)
    # The notebook acts as the script: a class's source and `in_fresh_process` need the file of `__main__`.
    sys.modules["__main__"].__file__ = str(catalogue.folder() / f"{name}.py")
    os.environ.pop("FORCE_COLOR", None)  # ipykernel sets it; a bar that erases itself needs a terminal
    prepare(devices=devices, platform=platform)
    return begin(section, Flags(config, smoke=smoke, verbose=True, devices=devices), show=live())


def chosen(*settings: str) -> bool:
    """Whether the command line has a flag for one of these settings, even with the default value."""
    return any(word.split("=")[0] == f"--{name.replace('_', '-')}" for word in sys.argv for name in settings)


def environment() -> Environment:
    """This process's environment.

    Raises:
      JaxperfError: JAX cannot start on the requested platform.
    """
    from jaxperf.measure.environment import current_environment

    wanted = os.environ.get("JAX_PLATFORMS") or "any platform"
    gpu = wanted.startswith("cuda")
    missing = "GPU" if gpu else f"device for {wanted}"
    nothing = f"JAX finds no {missing}; use --platform cpu, or see `jaxperf doctor`"
    try:
        found = current_environment()
    except (RuntimeError, AssertionError):
        raise JaxperfError(nothing) from None
    if gpu and found.backend != "gpu":  # JAX silently takes the next one in the list
        raise JaxperfError(nothing)
    if found.backend != "gpu":
        return found
    from jaxperf.doctor.driver import ask_driver

    return dataclasses.replace(found, gpus=ask_driver().words())
