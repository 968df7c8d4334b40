"""Write programs that nobody wrote by hand, each with no, one or two known causes of lost time.

A seed decides everything: what the program computes, its names, how it is laid out in files, how long it
runs, on how many devices, and the causes. The same seed gives the repaired program, so that the two differ by
the causes alone. Nothing here needs JAX.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

LAYOUTS = ("script", "main", "class", "helper", "library", "cell")
WORDS = {
    "state": ("params", "weights", "theta", "current", "solution"),
    "step": ("advance", "train_step", "update", "one_turn", "improve"),
    "batch": ("batch", "chunk", "sample", "part", "inputs"),
    "level": ("level", "average", "smooth", "trend", "running"),
    "history": ("history", "trace", "curve", "levels", "record"),
    "turn": ("i", "turn", "t", "epoch", "n"),
}
WEIGHTS = "order = jnp.sort(jnp.arange(300_000) * 7919 % 99_991)[-256:]"
ONCE = "order = jax.jit(lambda: jnp.sort(jnp.arange(300_000) * 7919 % 99_991)[-256:])()"


@dataclass(frozen=True)
class Skeleton:
    """What a program computes.

    Attributes:
      imports: lines at its top, beside jax, jnp and np.
      definitions: what stands above the step.
      start: statements that make the state.
      parameters: of the step, before the batch; what a call passes has the same names.
      returns: what the step returns before the level; "" if it changes its arguments.
      body: statements of the step; `x` is the scaled batch, and `value` is set by them.
      jit: what jits the step.
      row: an expression for a vector of the state, outside of the step.
      turn_s: seconds of a turn on a core of 2024, about.
    """

    imports: tuple[str, ...]
    definitions: tuple[str, ...]
    start: tuple[str, ...]
    parameters: str
    returns: str
    body: tuple[str, ...]
    jit: str
    row: str
    turn_s: float


SKELETONS = {
    "training": Skeleton(
        (),
        (
            "def loss(state, x):",
            '    hidden = jnp.tanh(x @ state["a"])',
            '    return ((hidden @ state["b"] - x[:, :1]) ** 2).mean()',
        ),
        ('state = {"a": jnp.full((256, 64), 0.01, jnp.float32), "b": jnp.full((64, 1), 0.1, jnp.float32)}',),
        "state",
        "state",
        (
            "value, gradient = jax.value_and_grad(loss)(state, x)",
            "state = jax.tree.map(lambda p, g: p - 0.05 * g, state, gradient)",
        ),
        "jax.jit",
        'state["a"][0]',
        0.004,
    ),
    "nnx training": Skeleton(
        ("import optax", "from flax import nnx"),
        (
            "class Net(nnx.Module):",
            "    def __init__(self, rngs):",
            "        self.first = nnx.Linear(256, 64, rngs=rngs)",
            "        self.second = nnx.Linear(64, 1, rngs=rngs)",
            "",
            "    def __call__(self, x):",
            "        return self.second(jnp.tanh(self.first(x)))",
            "",
            "",
            "def loss(model, x):",
            "    return ((model(x) - x[:, :1]) ** 2).mean()",
        ),
        (
            "model = nnx.jit(lambda: Net(nnx.Rngs(0)))()",
            "optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)",
        ),
        "model, optimizer",
        "",
        (
            "value, gradient = nnx.value_and_grad(loss)(model, x)",
            "optimizer.update(model, gradient)",
        ),
        "nnx.jit",
        "model.first.kernel[...][0]",
        0.005,
    ),
    "simulation": Skeleton(
        (),
        (
            "def spread(k, u):",
            "    around = jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1)",
            "    return u + 0.1 * (around - 4 * u)",
        ),
        ("state = jnp.zeros((1024, 256)).at[512, 128].set(1000.0)",),
        "state",
        "state",
        (
            "state = jax.lax.fori_loop(0, 3, spread, state)",
            "state = 0.99 * state + 0.001 * x",
            "value = jnp.abs(state).mean()",
        ),
        "jax.jit",
        "state[0]",
        0.005,
    ),
    "sampler": Skeleton(
        (),
        (
            "def log_density(position):",
            "    return -0.5 * (position**2).sum(1) - 0.1 * jnp.cos(3 * position).sum(1)",
        ),
        ("state = jnp.zeros((1024, 256))",),
        "state",
        "state",
        (
            "force = jax.grad(lambda p: log_density(p).sum())(state)",
            "moved = state + 0.005 * force + 0.1 * x",
            "accepted = log_density(moved) - log_density(state) > -jnp.abs(x[:, 0])",
            "state = jnp.where(accepted[:, None], moved, state)",
            "value = accepted.mean()",
        ),
        "jax.jit",
        "state[0]",
        0.006,
    ),
    "search": Skeleton(
        (),
        (
            "def height(points):",
            "    return (points**2 - 3 * jnp.cos(6 * points)).sum(1)",
        ),
        ("state = jnp.full(256, 2.0, jnp.float32)",),
        "state",
        "state",
        (
            "points = state + 0.1 * x",
            "heights = height(points)",
            "best = jnp.argsort(heights)[:64]",
            "state = points[best].mean(0)",
            "value = heights.min()",
        ),
        "jax.jit",
        "state",
        0.004,
    ),
    "analysis": Skeleton(
        (),
        (
            "def distances(x, centers):",
            "    return (x**2).sum(1)[:, None] - 2 * x @ centers.T + (centers**2).sum(1)",
        ),
        ("state = jnp.asarray(np.random.default_rng(1).standard_normal((64, 256)), jnp.float32)",),
        "state",
        "state",
        (
            "far = distances(x, state)",
            "near = jax.nn.one_hot(jnp.argmin(far, 1), 64)",
            "state = 0.9 * state + 0.1 * (near.T @ x) / (near.sum(0)[:, None] + 1)",
            "value = far.min(1).mean()",
        ),
        "jax.jit",
        "state[0]",
        0.004,
    ),
}

# Where a cause stands in a program; two causes of one place exclude each other
PLACES = {
    "eager": "decorator", "static value": "decorator", "new function": "decorator",
    "unrolled": "step", "callback": "step", "constant work": "step",
    "list": "scale", "put again": "scale",
    "shape": "batch", "data": "batch", "weak type": "level",
    "wait": "record", "element reads": "after", "iterated array": "after", "python": "after",
    "write": "after", "cleared": "after", "new body": "after",
}  # fmt: skip
CAUSES = tuple(PLACES)
COMPILING = ("static value", "new function", "shape", "cleared", "new body")
SIZES = 24  # of a batch that varies
READERS = 16  # threads that read ahead
VARIABLE = ("analysis", "nnx training", "search", "training")  # whose batch may have any number of rows


@dataclass
class Variant:
    """A program and what is known of it.

    Attributes:
      planted: the causes that it has, or that are repaired in it.
      slow: whether it has them.
      mended: those of them that it has no longer.
      files: text by path.
      run: the path of the file to run.
      places: for each cause, the places that a finding may name, the line itself first.
    """

    seed: int
    skeleton: str
    layout: str
    seconds: float
    devices: int
    busy: bool
    planted: tuple[str, ...]
    slow: bool
    mended: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    run: str = ""
    places: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    @property
    def causes(self) -> tuple[str, ...]:
        """Return the causes for which the program is slow."""
        return tuple(cause for cause in self.planted if self.slow and cause not in self.mended)

    def save(self, folder: Path) -> Path:
        """Write the files into a folder, and return the one to run."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return folder / self.run


class _Lines:
    """Lines of a file that is written, with the marks of causes in it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.marks: list[tuple[str, int]] = []  # cause, and the number of its line
        self.depth = 0

    def add(self, text: str = "", mark: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")
        if mark:
            self.marks.append((mark, len(self.lines)))

    def add_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.add(text)

    @contextlib.contextmanager
    def inside(self, text: str, mark: str = "") -> Iterator[None]:
        self.add(text, mark)
        self.depth += 1
        yield
        self.depth -= 1


class _Writer:
    """Writes one variant."""

    def __init__(self, variant: Variant) -> None:
        choose = random.Random(variant.seed + 1)
        self.variant, self.skeleton = variant, SKELETONS[variant.skeleton]
        self.names = {role: choose.choice(words) for role, words in WORDS.items()}
        self.places: dict[str, list[tuple[str, int]]] = {}
        compiles = any(cause in COMPILING for cause in variant.planted)
        turns = variant.seconds / self.skeleton.turn_s * (0.6 if compiles else 1.0)
        self.turns = max(24, int(turns))
        # a cause that compiles does so a dozen times, and more often in a long program
        self.every = max(1, self.turns // max(12, int(variant.seconds * 1.5)))

        self.several = variant.devices > 1
        self.put_table = "jax.device_put(table, WHOLE)" if self.several else "jnp.array(table)"

    def has(self, cause: str) -> bool:
        """Return whether the program is slow for this cause."""
        return cause in self.variant.causes

    def planted(self, cause: str) -> bool:
        """Return whether the program has this cause, or its repair."""
        return cause in self.variant.planted

    def mark(self, cause: str) -> str:
        """Return the mark of a line that has this cause."""
        return cause if self.has(cause) else ""

    def own(self, text: str) -> str:
        """Return a skeleton's text with this program's name of the state."""
        return re.sub(r"\bstate\b", self.names["state"], text)

    # --- the step

    def definitions(self) -> _Lines:
        """Return the functions, the step last."""
        out, skeleton = _Lines(), self.skeleton
        out.add_all(map(self.own, skeleton.definitions))
        out.add_all(("", ""))
        if self.several:
            axes = "axis_types=(jax.sharding.AxisType.Auto,)"
            out.add(f'MESH = jax.make_mesh((2,), ("rows",), {axes})')
            out.add('ROWS = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec("rows"))')
            out.add_all(("WHOLE = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec())", "", ""))
        if self.has("callback"):
            out.add_all(("def middle(values):", "    return np.sin(values).mean(dtype=np.float32)", "", ""))
        if self.planted("new body"):
            fall = "jax.lax.fori_loop(0, 8, lambda _, y: 0.9 * y + 0.1 * turn, x)"
            out.add_all(("@jax.jit", "def settle(x, turn):", f"    return {fall}", "", ""))
        if self.has("static value"):
            out.add(f'@functools.partial({skeleton.jit}, static_argnames=("rate",))')
        elif not self.has("eager"):
            out.add(f"@{skeleton.jit}")
        parameters = self.own(skeleton.parameters)
        step = f"def {self.names['step']}({parameters}, batch, scale, level, rate):"
        with out.inside(step, self.mark("eager")):
            self._step(out)
        return out

    def _step(self, out: _Lines) -> None:
        out.add("x = batch * scale * rate")
        if self.has("unrolled"):
            # a sum of it is computed once; XLA would compute the row itself again for each row of x
            out.add("row = x[0]")
            with out.inside("for _ in range(150):", "unrolled"):
                out.add("row = row + 1e-4 * jnp.sin(row)")
            out.add("x = x + 1e-6 * row.sum()")
        elif self.planted("unrolled"):
            out.add("row = jax.lax.fori_loop(0, 150, lambda _, row: row + 1e-4 * jnp.sin(row), x[0])")
            out.add("x = x + 1e-6 * row.sum()")
        if self.has("constant work"):
            out.add(WEIGHTS, "constant work")
            out.add("x = x * order / 99_991")
        out.add_all(map(self.own, self.skeleton.body))
        if self.has("callback"):
            out.add("shape = jax.ShapeDtypeStruct((), jnp.float32)")
            out.add("value = value + 1e-6 * jax.pure_callback(middle, shape, x)", "callback")
        elif self.planted("callback"):
            out.add("value = value + 1e-6 * jnp.sin(x).mean()")
        returns = self.own(self.skeleton.returns)
        result = f"{returns}{', ' if returns else ''}0.9 * level + 0.1 * value"
        if self.several:  # else XLA chooses how the next call's arguments are placed
            result = f"jax.lax.with_sharding_constraint(({result}), WHOLE)"
        out.add(f"return {result}")

    # --- the loop

    def loop(self) -> _Lines:
        """Return the statements of the program itself."""
        out, names = _Lines(), self.names
        turn, level, history = (names[role] for role in ("turn", "level", "history"))
        out.add("rng = np.random.default_rng(0)")
        self._data(out)
        out.add_all(map(self.own, self.skeleton.start))
        if self.several:
            state = self.names["state"]
            out.add(f"{state} = jax.device_put({state}, WHOLE)")
        out.add("factors = [1.0 + 1e-6 * k for k in range(256)]")
        if not self.has("list") and not self.has("put again"):
            out.add("scale = jnp.asarray(factors)")
        if self.planted("put again"):
            out.add("table = np.ones((1024, 256), np.float32)")
            if not self.has("put again"):
                out.add(f"scale = {self.put_table}")
        if self.planted("constant work") and not self.has("constant work"):
            out.add(ONCE)
            out.add("scale = scale * order / 99_991")
        first = "1.0" if self.has("weak type") else "jnp.float32(1.0)"
        if self.several and not self.has("weak type"):
            first = f"jax.device_put({first}, WHOLE)"
        out.add(f"{level} = {first}")
        out.add(f"{history} = []")
        self._row(out)
        with out.inside(f"for {turn} in range({self.turns}):"):
            self._batch(out)
            if self.has("list"):
                out.add("scale = jnp.array(factors)", "list")
            if self.has("put again"):
                out.add(f"scale = {self.put_table}", "put again")
            self._call(out)
            if self.has("wait"):
                out.add(f"{history}.append(float({level}))", "wait")
            else:
                out.add(f"{history}.append({level})")
            self._after(out)
        out.add(f'print(f"{{float({history}[-1]):.3f}}")')
        return out

    def _data(self, out: _Lines) -> None:
        """Write the batches, on the devices or from a slow disk."""
        out.add("data = rng.standard_normal((8, 1024, 256)).astype(np.float32)")
        put = "jax.device_put({}, ROWS)" if self.several else "jax.device_put({})"
        if self.planted("data"):
            with out.inside("def read(k):"):
                out.add(f"time.sleep({2.5 * self.skeleton.turn_s:.3f})")
                out.add(f"return {put.format('data[k % 8]')}")
            if not self.has("data"):
                # so many that none of them is waited for, also where a turn takes a third of its time
                out.add(f"threads = concurrent.futures.ThreadPoolExecutor({READERS})")
                out.add(f"coming = collections.deque(threads.submit(read, k) for k in range({READERS}))")
            return
        if self.has("shape"):
            size = "data[k % 8][: 1024 - 2 * k]"
            out.add(f"batches = [{put.format(size)} for k in range({SIZES})]")
        else:
            out.add(f"batches = [{put.format('part')} for part in data]")

    def _batch(self, out: _Lines) -> None:
        """Write how a turn gets its batch."""
        turn, batch = self.names["turn"], self.names["batch"]
        if self.has("data"):
            out.add(f"{batch} = read({turn})", "data")
        elif self.planted("data"):
            out.add(f"{batch} = coming.popleft().result()")
            out.add(f"coming.append(threads.submit(read, {turn} + {READERS}))")
        elif self.has("shape"):
            out.add(f"{batch} = batches[{turn} // {self.every} % {SIZES}]")
        else:
            out.add(f"{batch} = batches[{turn} % 8]")

    def _call(self, out: _Lines) -> None:
        """Write the call of the step."""
        names, skeleton, turn = self.names, self.skeleton, self.names["turn"]
        step, parameters, returns = names["step"], self.own(skeleton.parameters), self.own(skeleton.returns)
        targets = f"{returns}{', ' if returns else ''}{names['level']}"
        rate = "rate=1.0"
        if self.planted("static value"):
            rate = f"rate=0.999 ** ({turn} // {self.every})"
        if self.has("new function"):
            with out.inside(f"if {turn} % {self.every} == 0:"):
                out.add(f"{step}_now = {skeleton.jit}(lambda *given, rate: {step}(*given, rate=rate))")
            step = f"{step}_now"
        mark = next((c for c in ("new function", "static value", "shape", "weak type") if self.has(c)), "")
        out.add(f"{targets} = {step}({parameters}, {names['batch']}, scale, {names['level']}, {rate})", mark)
        for cause in ("static value", "shape", "weak type"):
            if cause != mark and self.has(cause):
                out.marks.append((cause, len(out.lines)))
        out.marks.append(("call", len(out.lines)))

    def _row(self, out: _Lines) -> None:
        """Write a row of the first state, which each turn reads: one that changed would be waited for."""
        row = self.own(self.skeleton.row)
        if self.has("element reads") or self.has("iterated array"):
            out.add(f"row = {row}")
        elif self.planted("element reads") or self.planted("iterated array"):
            out.add(f"row = np.asarray({row})")

    def _after(self, out: _Lines) -> None:
        """Write what a turn does after its step."""
        turn, level = self.names["turn"], self.names["level"]
        if self.planted("element reads"):
            out.add("most = 0.0")
            with out.inside("for k in range(len(row)):"):
                out.add("most = max(most, float(row[k]))", self.mark("element reads"))
        if self.planted("iterated array"):
            out.add("total = 0.0")
            with out.inside("for element in row:", self.mark("iterated array")):
                out.add("total += 0.5 * float(element)")
        if self.planted("python"):
            often = 1 if self.has("python") else 40
            with out.inside(f"if {turn} % {often} == 0:"):
                work = int(self.skeleton.turn_s * 2.5 / 6e-8)
                out.add(f"letters = sum(k * {turn} % 26 for k in range({work}))", self.mark("python"))
        if self.planted("write"):
            often = 1 if self.has("write") else 40
            with out.inside(f"if {turn} % {often} == 0:"):
                out.add("np.save(pathlib.Path(folder, 'batch.npy'), data)", self.mark("write"))
        if self.has("cleared"):
            with out.inside(f"if {turn} % {self.every} == 0:"):
                out.add("jax.clear_caches()", "cleared")
        if self.planted("new body"):
            with out.inside(f"if {turn} % {self.every} == 0:"):
                if self.has("new body"):
                    body = f"lambda _, y: 0.9 * y + 0.1 * {turn}"
                    out.add(f"mean = jax.lax.fori_loop(0, 8, {body}, {level} * 1.0)", "new body")
                else:
                    out.add(f"mean = settle({level}, {turn})")

    # --- files

    def lay_out(self) -> None:
        """Write the files of the variant, and the places of its causes."""
        variant, top, body = self.variant, self.definitions(), self.loop()
        head = ["import functools", "import pathlib", "import tempfile", "import time"]
        head += ["import collections", "import concurrent.futures", ""]
        head += [
            "import jax",
            "import jax.numpy as jnp",
            "import numpy as np",
            *self.skeleton.imports,
            "",
            "",
        ]
        if variant.planted and "write" in variant.planted:
            body.lines.insert(0, "folder = tempfile.mkdtemp()")
            body.marks = [(cause, line + 1) for cause, line in body.marks]
        if variant.layout in ("helper", "library"):
            module = "turns" if variant.layout == "helper" else "site-packages/studies"
            self._file(f"{module}.py", [(head, []), (top.lines, top.marks)])
            main = [*head[:-2], f"from {Path(module).name} import *", "", "", "def main():"]
            self._file("program.py", [(main, []), _indented(body, 1), (["", "", "main()"], [])])
            variant.run = "program.py"
        elif variant.layout == "class":
            start = ["", "", "class Study:", "    def run(self):"]
            parts = [
                (head, []),
                (top.lines, top.marks),
                (start, []),
                _indented(body, 2),
                (["", "", "Study().run()"], []),
            ]
            self._file("program.py", parts)
            variant.run = "program.py"
        elif variant.layout == "main":
            parts = [(head, []), (top.lines, top.marks), (["", "", "def main():"], []), _indented(body, 1)]
            self._file("program.py", [*parts, (["", "", 'if __name__ == "__main__":', "    main()"], [])])
            variant.run = "program.py"
        else:
            name = "program.py" if variant.layout == "script" else "cell.py"
            self._file(name, [(head, []), (top.lines, top.marks), (["", ""], []), (body.lines, body.marks)])
            variant.run = name
        calls = self.places.pop("call")
        for cause in variant.causes:
            variant.places[cause] = self.places[cause] + calls
        variant.files = {name: text.rstrip("\n") + "\n" for name, text in variant.files.items()}

    def _file(self, name: str, parts: list[tuple[list[str], list[tuple[str, int]]]]) -> None:
        lines: list[str] = []
        for part, marks in parts:
            for cause, line in marks:
                self.places.setdefault(cause, []).append((name, line + len(lines)))
            lines += part
        self.variant.files[name] = "\n".join(lines)


def _indented(part: _Lines, depth: int) -> tuple[list[str], list[tuple[str, int]]]:
    return ["    " * depth + line if line else "" for line in part.lines], part.marks


def draw(
    seed: int, *, seconds: float | None = None, causes: tuple[str, ...] | None = None, layout: str = ""
) -> Variant:
    """Return the variant of a seed: of five, one has no cause, one has two, and three have one.

    Args:
      seed: decides everything that is not given.
      seconds: of the program, about; 2 to 30 by default.
      causes: that it has.
      layout: one of `LAYOUTS`.
    """
    choose = random.Random(seed)
    skeleton, drawn = choose.choice(sorted(SKELETONS)), choose.choice(LAYOUTS)
    length = choose.choice((2.0, 3.0, 5.0, 8.0, 15.0, 30.0))
    devices, busy = choose.choice((1, 1, 2)), choose.random() < 0.3
    other = choose.choice(VARIABLE)
    first = choose.choice(CAUSES)
    second = choose.choice([cause for cause in CAUSES if not _exclude(first, cause)])
    count = choose.choice((0, 1, 1, 1, 2))
    if causes is not None:
        planted, slow = causes, True
    elif count == 0:
        planted, slow = (first, second), False
    else:
        planted, slow = (first, second)[:count], True
    if "shape" in planted and skeleton not in VARIABLE:
        skeleton = other
    if skeleton == "nnx training":
        devices = 1  # XLA chooses how a module's state is placed
    return _written(Variant(seed, skeleton, layout or drawn, seconds or length, devices, busy, planted, slow))


def _exclude(one: str, other: str) -> bool:
    """Return whether a program cannot have both causes: a function outside of jit is not traced."""
    places = {PLACES[one], PLACES[other]}
    return len(places) == 1 or ("eager" in (one, other) and places == {"decorator", "step"})


def repaired(variant: Variant) -> Variant:
    """Return the same program after the repair of its causes."""
    return _written(replace(variant, slow=False, files={}, places={}))


def without(variant: Variant, cause: str) -> Variant:
    """Return the same program after the repair of one of its causes."""
    return _written(replace(variant, mended=(cause,), files={}, places={}))


def _written(variant: Variant) -> Variant:
    _Writer(variant).lay_out()
    return variant
