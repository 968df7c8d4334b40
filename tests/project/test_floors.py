"""The layers hold: imports go down, and in no circle.

The walk over the imports has tests of its own: in a small tree that breaks each rule once it must find that.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The ground serves where JAX is not installed: renderers and the runners of other frameworks.
GROUND = ("jaxperf.errors", "jaxperf.jax_internals", "jaxperf.processes.parent", "jaxperf.result")
# Imported inside a function: by those who ask for a ratio, and on Windows
ON_THE_GROUND = {"jaxperf.result.ratio": "scipy", "jaxperf.processes.parent": "psutil"}
FLOORS = {
    "ground": 0,
    **dict.fromkeys(("jaxperf.measure", "jaxperf.data", "jaxperf.models"), 1),
    **dict.fromkeys(("jaxperf.parallel",), 2),
    **dict.fromkeys(("jaxperf.train", "jaxperf.report", "jaxperf.frameworks"), 3),
}
TOP = 4  # the command line and what scripts share: whatever else lies in jaxperf
ONLY_GROUND = ("jaxperf.report", "jaxperf.frameworks")
# JAX's own side of the comparison: a process in jaxperf's own environment, so it may use all below its floor.
OF_JAX = "jaxperf.frameworks.workers.jax_"


def part_of(module: str) -> str:
    """What a module belongs to: the ground, or its folder in jaxperf, or what lies on top."""
    if module in ("jaxperf", *GROUND) or module.startswith("jaxperf.result."):
        return "ground"
    folder = ".".join(module.split(".")[:2])
    return folder if folder in FLOORS else module.split(".")[0]


def floor_of(module: str) -> int:
    return FLOORS.get(part_of(module), TOP if module.startswith("jaxperf.") else TOP + 2)


def modules(root: Path) -> dict[str, Path]:
    """Every module of the tree by its dotted name; packages by the folder's name."""
    paths = sorted([*(root / "jaxperf").rglob("*.py"), *(root / "experiments").rglob("*.py")])
    names = (".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for p in paths)
    return dict(zip(names, paths))


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST, module: str, known: dict[str, Path]) -> Iterator[tuple[str, str]]:
    """Each import of a module, wherever it stands in the file, as (module, name); name "" for all of it."""
    package = module if known[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield (inner, "") if inner in known else (source, alias.name)


def trouble(root: Path) -> list[str]:
    """Every broken rule of the tree under `root`, one line each."""
    known = modules(root)
    faults = [
        f"{name} is called utils" for name in known if name.split(".")[-1] in ("utils", "util", "helpers")
    ]
    edges: dict[str, set[str]] = {}
    for module, path in known.items():
        for target, name in imports(parse(path), module, known):
            faults += check(module, target, name, known)
            if target in known and target != module:
                edges.setdefault(module, set()).add(target)
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as e:
        faults.append(f"circle: {' -> '.join(e.args[1])}")
    return faults


def check(module: str, target: str, name: str, known: dict[str, Path]) -> list[str]:
    """The rules that one import breaks."""
    top, part, floor = target.split(".")[0], part_of(module), floor_of(module)
    if top not in ("jaxperf", "experiments"):
        siblings = {n.split(".")[-1] for n in known if n.startswith("experiments.")}
        if floor > TOP and top in siblings:
            return [f"{module} imports another experiment, {target}"]
        if part == "ground" and top not in {*sys.stdlib_module_names, ON_THE_GROUND.get(module)}:
            return [f"{module} imports {target}, which is not in the standard library"]
        return []
    if top == "experiments":
        return [f"{module} imports an experiment, {target}"]
    below, same = floor_of(target), part_of(target) == part
    faults = []
    only_ground = part in ONLY_GROUND and not module.startswith(OF_JAX)
    if below > (0 if only_ground else floor - 1) and not same:
        faults.append(f"{module} (floor {floor}) imports {target} (floor {below})")
    private = any(word.startswith("_") and not word.endswith("__") for word in (*target.split("."), name))
    if floor > TOP and private:
        faults.append(f"{module} imports a private name, {target}.{name}".rstrip("."))
    return faults


def test_no_floor_is_broken() -> None:
    assert trouble(ROOT) == []


def test_the_walk_sees_every_module() -> None:
    known = modules(ROOT)
    assert {*GROUND, "jaxperf", "jaxperf.measure.timing", "jaxperf.section", "experiments.hybridize"} <= set(
        known
    )
    parts = {part_of(module) for module in known} - {"ground", "jaxperf", "experiments"}
    there = (ROOT / "jaxperf").iterdir()
    folders = {f"jaxperf.{p.stem}" for p in there if p.suffix == ".py" or list(p.rglob("*.py"))}
    assert parts == folders & set(FLOORS)


GOOD = {
    "jaxperf/__init__.py": "",
    "jaxperf/errors.py": "import json",
    "jaxperf/measure/__init__.py": "",
    "jaxperf/result/__init__.py": "",
    "jaxperf/result/record.py": "from __future__ import annotations\nimport math, os.path",
    "jaxperf/measure/timing.py": "import jax\nfrom jaxperf.result import record\nfrom jaxperf import errors",
    "jaxperf/models/__init__.py": "from jaxperf.models.mlp import MLP",
    "jaxperf/models/mlp.py": "from flax import nnx",
    "jaxperf/parallel/__init__.py": "",
    "jaxperf/parallel/split.py": "from jaxperf.models import MLP",
    "jaxperf/report/__init__.py": "",
    "jaxperf/report/text.py": "import rich\nfrom jaxperf.result.record import Result",
    "jaxperf/section.py": "from jaxperf.report import text\nfrom jaxperf import flags, __version__",
    "jaxperf/flags.py": "import tyro",
    "experiments/one.py": "from jaxperf import section",
    "experiments/two.py": "import jax",
}
UP, MLP, TWO = "(floor", "jaxperf/models/mlp.py", "experiments/two.py"
BAD = {
    "upwards": (MLP, "from jaxperf.parallel.split import split", UP),
    "upwards inside a function": (MLP, "def f():\n    import jaxperf.section", UP),
    "upwards while type checking": ("jaxperf/errors.py", "if TYPE_CHECKING:\n    import jaxperf.measure", UP),
    "upwards by a relative import": (MLP, "from ..parallel import split", UP),
    "sideways": (MLP, "from jaxperf.measure.timing import measure", UP),
    "a renderer that measures": ("jaxperf/report/text.py", "from jaxperf.measure import timing", UP),
    "a renderer that computes": ("jaxperf/report/text.py", "import jaxperf.parallel.split", UP),
    "a library on the ground": ("jaxperf/result/record.py", "import numpy as np", "standard library"),
    "a circle": ("jaxperf/flags.py", "from jaxperf.section import section", "circle"),
    "a circle in a package": (MLP, "from . import MLP", "circle"),
    "another experiment": (TWO, "import one", "another experiment"),
    "another experiment by name": (TWO, "from experiments.one import main", "an experiment"),
    "an experiment in the package": ("jaxperf/section.py", "import experiments.one", "an experiment"),
    "a private name": (TWO, "from jaxperf.section import _fail", "private name"),
    "a private module": (TWO, "from jaxperf.models._mlp import MLP", "private name"),
    "utils": ("jaxperf/models/utils.py", "", "utils"),
}


def build(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_sound_tree_has_no_trouble(tmp_path: Path) -> None:
    assert trouble(build(tmp_path, GOOD)) == []


def test_each_broken_rule_is_found_and_named(tmp_path: Path) -> None:
    for name, (file, text, rule) in BAD.items():
        faults = trouble(build(tmp_path / name, {**GOOD, file: f"{GOOD.get(file, '')}\n{text}"}))
        [line] = [line for line in faults if rule in line]
        assert file.removesuffix(".py").replace("/", ".") in line, name
        assert all(other.startswith("circle") for other in faults if other != line)  # going up may close one


def test_what_must_answer_at_once_imports_no_jax_and_jaxperf_only_the_standard_library() -> None:
    program = """
import sys; before = set(sys.modules); import jaxperf
print({n.split('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names))
import jaxperf.cli.command_line, jaxperf.chapter.recorder, jaxperf.report.terminal, jaxperf.result
print({'jax', 'flax', 'tensorflow', 'scipy', 'matplotlib'} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("{'jaxperf'}\nset()\n", "")


WALL_CLOCKS = re.compile(r"\b(time\.(time|time_ns|ctime|localtime|gmtime)|datetime\.(now|utcnow|today))$")


def wall_clocks(tree: ast.Module) -> list[str]:
    """What a program calls that changes when a clock is set; names imported from their module too."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            names.append(ast.unparse(node.func))
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in names if WALL_CLOCKS.search(name)]


def test_no_duration_is_taken_from_a_clock_that_may_jump() -> None:
    """The only uses are dates of runs and cells; lessons measure as the book does, with `time.time`, too."""
    package = {name: path for name, path in modules(ROOT).items() if not name.startswith("experiments.")}
    used = {name: clocks for name, path in package.items() if (clocks := wall_clocks(parse(path)))}
    assert used == {
        n: ["datetime.datetime.now"]
        for n in ("jaxperf.chapter.cells", "jaxperf.chapter.recorder", "jaxperf.watch.report.text")
    }
    assert wall_clocks(ast.parse("from time import time\nimport time\ntime.time_ns()")) == [
        "time.time",
        "time.time_ns",
    ]
