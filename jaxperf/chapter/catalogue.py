"""The sections of the chapter: what each script asks, and about how long it takes on two CPU cores."""

from dataclasses import dataclass
from pathlib import Path

from jaxperf.errors import JaxperfError
from jaxperf.flags import Parser, did_you_mean, whole
from jaxperf.result import About


@dataclass(frozen=True)
class SectionEntry(About):
    """One section, and about how many seconds it takes."""

    takes_s: int


SECTIONS = (
    SectionEntry("performance_model", "8.0", "A performance model",
            "What limits a program, how do you find out, and what makes a training step fast?", 40),
    SectionEntry("hybridize", "8.1", "Imperative and symbolic programming",
            "What does compiling a network gain, what does it cost, and what does it forbid?", 15),
    SectionEntry("async_computation", "8.2", "Asynchronous computation",
            "When does a call return, when is its value ready, and what does not waiting gain?", 30),
    SectionEntry("auto_parallelism", "8.3", "Automatic parallelism",
            "What runs at the same time without being asked to, and what does that gain?", 20),
    SectionEntry("multiple_gpus", "8.4", "Training on several devices",
            "How do several devices train one model together, and what does it cost them to agree?", 50),
    SectionEntry("multiple_gpus_concise", "8.5", "Concise training on several devices",
            "How much of data parallelism can JAX and Flax do for you, and what does ResNet-18 gain?", 40),
    SectionEntry("use_gpu", "8.6", "Using a GPU",
            "Which devices are there, where are arrays and parameters, and what crosses between them?", 10),
    SectionEntry("collectives", "8.7", "Collectives",
            "How do devices add up what they hold, and what does it cost?", 15),
    SectionEntry("model_parallelism", "8.8", "Splitting the model",
            "What if the model itself is divided among devices: by layers, or within a layer?", 15),
    SectionEntry("scaling", "8.9", "From 2 to 1,000 devices",
            "What will a step take on 8, 64 and 1,024 devices, and what limits it?", 15),
    SectionEntry("peers", "8.10", "Beside MXNet and PyTorch",
            "How fast are JAX, MXNet and PyTorch at the same work on this machine?", 360),
)  # fmt: skip


def place(name: str) -> int:
    """Return the place of a section in the chapter; unknown names come last."""
    names = [s.name for s in SECTIONS]
    return names.index(name) if name in names else len(names)


def folder() -> Path:
    """Return the folder of the scripts: in an installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "experiments", package.parent / "experiments"):
        if (candidate / f"{SECTIONS[-1].name}.py").exists():
            return candidate
    raise JaxperfError(f"no experiments next to {package}; install jaxperf again or run from a checkout")


def find(word: str) -> SectionEntry:
    """Return the section with this name or number ("hybridize", "8.1")."""
    wanted = word.strip().lower().removesuffix(".py")
    for section in SECTIONS:
        if wanted in (section.name, section.number) and wanted:
            return section
    names = ["all", *(w for s in SECTIONS for w in (s.name, s.number) if w)]
    raise JaxperfError(f"no section {word!r}{did_you_mean(wanted, names)}; `jaxperf list` shows all")


def add_flags(parser: Parser, devices: int | None = None) -> None:
    """Add the flags that all sections share, which `jaxperf run` passes on to them."""
    add = parser.add_argument
    how_many = "how many devices to use; a CPU is divided into so many; each section has a default"
    add("--devices", type=whole(1, 1024), default=devices, metavar="N", help=how_many)
    where = "where to run; auto takes a GPU if JAX finds one"
    add("--platform", choices=("auto", "cpu", "gpu"), default="auto", help=where)
    size = parser.add_mutually_exclusive_group()
    toy = "run every cell at toy size, in seconds; the times mean nothing"
    size.add_argument("--smoke", action="store_true", help=toy)
    size.add_argument("--full", action="store_true", help="run the long version, as on the pages of the book")
    add("--answers", action="store_true", help="run the answers to the exercises too")
