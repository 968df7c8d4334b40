import pytest

from jaxperf.watch.log import DATA, EAGER, PYTHON, Compiled, Log, Put, StackSample
from jaxperf.watch.observe.source_location import NOWHERE
from jaxperf.watch.report.analysis import reclassified_samples

PROGRAM = """\
def get_batch(i):
    return np.load(paths[i])

def update(w, x):
    return step(w, x)

def decoded(w, i):
    codes = decode(i)
    return step(w, codes)

def main(w):
    table = prepare()
    for i in range(9):
        x = get_batch(i)
        x = jnp.asarray(x)
        w = update(w, x)
        describe(w)
        w = update(w, get_batch(i))
        w = decoded(w, i)
        with open(name + ".npz", "wb") as file:
            np.savez(file, w)
        with open("wax.txt") as file:
            describe(file)
        with open(paths["w"]) as table:
            describe(table)
        with gzip.open(name, mode="wb") as packed:
            np.save(packed, w)

    with open("last.npz", "wb") as last:
        np.savez(last, w)

main(1)
"""
FUNCTIONS = {
    "return np": "get_batch", "return step": "update", "codes": "decoded", "return step(w, codes)": "decoded",
    "main(1)": "<module>",
}  # fmt: skip


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize(("kind", "chain", "as_kind", "at"), [
    ("numpy", ("return np", "x = get", "main(1)"), "data", "x = get"),
    ("python", ("return np", "w = update(w, get", "main(1)"), "data", "w = update(w, get"),
    ("eager", ("x = jnp", "main(1)"), "data", "x = jnp"),
    ("python", ("describe(w)", "main(1)"), "between", "describe(w)"),
    ("python", ("describe(file)", "main(1)"), "between", "describe(file)"),
    ("numpy", ("describe(w)", "main(1)"), "numpy", "describe(w)"),
    ("python", ("describe(table)", "main(1)"), "between", "describe(table)"),
    ("write", ("np.save(packed", "main(1)"), "write", "with gzip.open(name"),
    ("write", ("np.savez(file", "main(1)"), "write", 'with open(name + ".npz"'),
    ("python", ('with open(name + ".npz"', "main(1)"), "write", 'with open(name + ".npz"'),
    ("python", ("return step", "w = update(w, x)", "main(1)"), "dispatch", "return step"),
    ("eager", ("return step", "w = update(w, x)", "main(1)"), "dispatch", "return step"),
    ("python", ("codes", "w = decoded", "main(1)"), "between", "codes"),
    ("numpy", ("codes", "w = decoded", "main(1)"), "numpy", "codes"),
    ("write", ("codes", "w = decoded", "main(1)"), "write", "codes"),
    ("python", ("codes", "main(1)"), "python", "codes"), ("python", ("table", "main(1)"), "python", "table"),
    ("write", ("np.savez(last", "main(1)"), "python", "np.savez(last"),
    ("import", ("table", "main(1)"), "import", "table"),
])  # fmt: skip
def test_what_a_look_was_busy_with_follows_from_its_loop(kind, chain, as_kind, at, jitted, places):
    place = places(PROGRAM)

    def stack(*starts):
        return [place(start, FUNCTIONS.get(start, "main")) for start in starts]

    innermost, *callers = stack(*chain)
    stacks = [
        stack("return step", "w = update(w, x)", "main(1)"),
        stack("return step", "w = update(w, g", "main(1)"),
        stack("return step(w, codes)", "w = decoded", "main(1)"),
    ]
    log = Log("a", puts=[Put(place("x = jnp"), 0.0, 1.0, 1 << 20, again=False)])
    if jitted:
        log.compiled = [Compiled("step", s[0], explained=True, callers=tuple(s[1:])) for s in stacks]
    else:  # operations outside jit are the steps; Python in their loop may be theirs
        log.samples = [StackSample("eager", s[0], 0.0, 1.0, NOWHERE, tuple(s[1:])) for s in stacks]
        as_kind = {"between": "python", "dispatch": kind}.get(as_kind, as_kind)
    log.samples.append(StackSample(kind, innermost, 0.0, 1.0, NOWHERE, tuple(callers)))
    *_, sample = reclassified_samples(log)
    assert (sample.kind, sample.at.line) == (as_kind, place(at).line)
    assert sample.inside == (innermost if sample.at != innermost else NOWHERE)


@pytest.mark.parametrize(("operations", "kind"), [(3, PYTHON), (0, DATA), (1, DATA)])
def test_python_beside_operations_of_its_line_is_no_data(operations, kind, places):
    """A split of a key is unpacked in Python, and needs no result of a step."""
    at = places("for n in range(90):\n    key, part = jax.random.split(key)\n    w = step(w, part)\n")
    split, step = at(2), Compiled("step", at(3), {"trace": (0.0, 0.1)}, explained=True)
    samples = [StackSample(EAGER, split, float(n), n + 0.1) for n in range(operations)]
    samples += [StackSample(PYTHON, split, n + 0.5, n + 0.6) for n in range(2)]
    *_, sample = reclassified_samples(Log("a", 0.0, 9.0, compiled=[step], samples=samples))
    assert sample.kind == kind
