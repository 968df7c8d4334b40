"""A section of the chapter: its parameters, what it shows, and what it keeps.

    s = section("8.4", devices=2, epochs=4, lr=0.2, smoke={"epochs": 1}, full={"epochs": 10})
    s.table(interleaved({...}, count=12), title="One step", base="by hand")
    s.claim("All ways compute the same", holds=worst < 1e-6, expected="under 1e-6", observed=f"{worst:.0e}",
            if_holds="So you may take the shortest.", if_not="The longest way is the reference.")

In a script, `--epochs 1` replaces a value, `--smoke` takes the toy sizes, `--full` the long ones, and `--json
FILE` keeps what was measured. On a GPU, `gpu={...}` replaces values that the command line does not set. In a
notebook the values are those that the cell gives.
"""

import argparse
import contextlib
import dataclasses
import io
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxperf import flags
from jaxperf.libraries import from_chapter
from jaxperf.measure import current_environment
from jaxperf.process import leave, mistakes_end
from jaxperf.result import Block, Timeline
from jaxperf.result.gpus import ask_driver
from jaxperf.result.recorder import Recorder

with from_chapter():
    import matplotlib.style

    from jaxperf.chapter import catalogue, cells, one_gpu
    from jaxperf.chapter.display import Figure, in_notebook, show
    from jaxperf.chapter.drawings import draw_timeline

STYLE = Path(__file__).with_name("figures.mplstyle")
PLATFORMS = {"cpu": "cpu", "gpu": "cuda,cpu"}  # with a GPU, the host is a device too


def section(
    number: str,
    *,
    devices: int = 1,
    cpu_devices: int = 1,
    programs: int = 0,
    smoke: Mapping[str, Any] | None = None,
    full: Mapping[str, Any] | None = None,
    gpu: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> "Section":
    """Begin a section: read the flags, and tell JAX into how many devices to divide a CPU.

    Call it before the first JAX operation. If JAX has started already, it keeps the devices that it has. On a
    machine with fewer GPUs than `devices`, the section runs on CPU devices, and says so.

    In a script, this call hands over to `jaxperf.chapter.cells`, which runs the script's cells one by one.
    A cell that fails is reported, and the others still run.

    Args:
      number: the section's number in the book, or its script's name.
      devices: how many devices to use.
      cpu_devices: into how many devices to divide a CPU at least, also where a GPU does the work.
      programs: how many programs the section compiles at most, without its answers; 0 if that is open. A
        small network takes XLA 1 to 2 s on a GPU, ResNet-18 8 to 16 s.
      smoke: the parameters' values for `--smoke`, with which everything runs in seconds.
      full: the parameters' values for `--full`, the long version.
      gpu: the parameters' values where JAX runs on a GPU, which needs larger ones; toy sizes stay.
      **parameters: names and default values; each is a flag of the script, and an attribute of the section.
        A default of None is a path that need not be given.
    """
    about = catalogue.find(number)
    arguments = [] if in_notebook() else sys.argv[1:]
    values = {"devices": devices, **parameters}
    if "--smoke" in arguments:
        values |= smoke or {}
    if "--full" in arguments:
        values |= full or {}
    with mistakes_end():
        options = _parse(about, values, arguments)
    is_script = sys._getframe(1).f_globals.get("__name__") == "__main__" and not in_notebook()
    if is_script and cells.current is None:
        leave(cells.main(Path(sys.argv[0]), options))
    if in_notebook():  # whose first cell may ask for more
        cpu_devices = max(cpu_devices, int(os.environ.get("JAX_NUM_CPU_DEVICES", "1")))
    _choose_devices(options.devices, max(options.devices, cpu_devices), options.platform)
    matplotlib.style.use(STYLE)
    settings = {name: getattr(options, name) for name in values}
    if gpu and not options.smoke and jax.default_backend() == "gpu":
        given = {word.partition("=")[0] for word in arguments}
        settings |= {k: v for k, v in gpu.items() if "--" + k.replace("_", "-") not in given}
    with mistakes_end():
        new = Section(about, settings, options, programs)
    cells.begun = new
    return new


def _parse(about: catalogue.SectionEntry, values: Mapping[str, Any], arguments: Sequence[str]) -> Any:
    """Read the flags that all sections share, and a flag for each of the section's parameters."""
    parser = flags.Parser(Path(sys.argv[0]).name, about.question)
    catalogue.add_flags(parser, values["devices"])
    add = parser.add_argument
    add("--json", type=flags.file_path, metavar="FILE", help="keep the measurements and claims in this file")
    add("--notebook", type=flags.file_path, metavar="FILE", help="keep the executed notebook in this file")
    for name, value in values.items():
        if name != "devices":
            flags.add_parameter(parser, name, value)
    return parser.parse_args(arguments)


def _without_files(arguments: Sequence[str]) -> list[str]:
    """Leave out where results go: it changes nothing in the run, and names folders of one machine."""
    files = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    files.add_argument("--json")
    files.add_argument("--notebook")
    return files.parse_known_args(arguments)[1]


def _choose_devices(count: int, cpu_devices: int, platform: str) -> None:
    """Set what JAX reads when it starts: the platform, and the number of CPU devices."""
    with contextlib.suppress(RuntimeError):  # JAX has started
        jax.config.update("jax_num_cpu_devices", cpu_devices)
    gpus = 0 if getattr(jax.config, "jax_platforms", None) else len(ask_driver().gpus)
    if platform != "cpu" and 0 < gpus < count:
        print(f"This machine has {gpus} GPU, the section uses {count} devices: it runs on CPU devices.")
        platform = "cpu"
    if platform != "auto":
        jax.config.update("jax_platforms", PLATFORMS[platform])


class Section(Recorder):
    """One run of a section, made by `section`; `s.epochs` is the value of its parameter `epochs`."""

    def __init__(
        self, about: catalogue.SectionEntry, values: Mapping[str, Any], options: Any, programs: int = 0
    ) -> None:
        command = shlex.join(["python", f"experiments/{about.name}.py", *_without_files(sys.argv[1:])])
        super().__init__(about, current_environment(), dict(values), command=command, smoke=options.smoke)
        self.options, self.programs = options, programs

    def __getattr__(self, name: str) -> Any:
        config = self.__dict__.get("config", {})
        if name in config:
            return config[name]
        raise AttributeError(f"no parameter {name!r}; section(...) names {', '.join(config)}")

    def show(self, block: Block) -> None:
        """Show a block where this runs."""
        show(block)

    def on_one_gpu(self, rows: Mapping[str, one_gpu.Key]) -> None:
        """Show and keep a small table: what the kept run on one GPU measured, and this run beside it.

        Args:
          rows: for each row its label, and the figure: the name of a fact or of a table's row, or a pair of
            a part of the table's title and the row's name. Rows that the kept run lacks are left out.
        """
        title, heads, cells = one_gpu.rows(self.about.name, rows, self.blocks)
        if cells:
            self.grid(heads, cells, title=title)

    def figure(self, figure: Any, caption: str, *, alt: str = "") -> None:
        """Show a Matplotlib figure and close it.

        Args:
          figure: from Matplotlib.
          caption: what the figure shows. `Recorder.sentence` chooses a sentence that depends on the outcome.
          alt: axes and curves in words, for readers who cannot see the figure; by default the caption.
        """
        from matplotlib import pyplot

        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
        pyplot.close(figure)
        show(Figure(svg.getvalue(), caption, alt))

    def timeline(
        self, run: Timeline, caption: str, *, words: Mapping[str, str] | None = None, alt: str = ""
    ) -> None:
        """Show when each lane of a timeline was busy, and with what.

        Args:
          run: the timeline.
          caption: what it shows.
          words: what stands on the bars, by XLA's name of the work, e.g. {"ynn_fusion": "product"}.
          alt: the figure in words; by default the caption.
        """
        self.figure(draw_timeline(run, words), caption, alt=alt)

    def data_source(self, source: str) -> None:
        """Record where the images came from."""
        self.environment = dataclasses.replace(self.environment, data_source=source)
