import pytest

from jaxperf.watch.log import Log
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.sampler import StackSample
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.observe.transfers import Put
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
LINES = PROGRAM.splitlines()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def line(start):
    return next(i for i, text in enumerate(LINES, start=1) if text.strip().startswith(start))


@pytest.mark.parametrize(
    ("kind", "chain", "as_kind", "at"),
    [
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
        ("python", ("return step(w, x)", "w = update(w, x)", "main(1)"), "dispatch", "return step(w, x)"),
        ("eager", ("return step(w, x)", "w = update(w, x)", "main(1)"), "dispatch", "return step(w, x)"),
        ("python", ("codes", "w = decoded", "main(1)"), "between", "codes"),
        ("numpy", ("codes", "w = decoded", "main(1)"), "numpy", "codes"),
        ("write", ("codes", "w = decoded", "main(1)"), "write", "codes"),
        ("python", ("codes", "main(1)"), "python", "codes"),
        ("python", ("table", "main(1)"), "python", "table"),
        ("write", ("np.savez(last", "main(1)"), "python", "np.savez(last"),
        ("import", ("table", "main(1)"), "import", "table"),
    ],
)
def test_what_a_look_was_busy_with_follows_from_its_loop(kind, chain, as_kind, at, file):
    functions = {
        "return np": "get_batch",
        "return step(w, x)": "update",
        "codes": "decoded",
        "main(1)": "<module>",
    }
    innermost, *callers = (Place(file, line(start), functions.get(start, "main")) for start in chain)
    steps = [
        Compiled(
            "step",
            Place(file, line(call), of),
            explained=True,
            callers=(Place(file, line(outer), "main"), module),
        )
        for module in (Place(file, line("main(1)"), "<module>"),)
        for call, of, outer in (
            ("return step(w, x)", "update", "w = update(w, x)"),
            ("return step(w, x)", "update", "w = update(w, g"),
            ("return step(w, codes)", "decoded", "w = decoded"),
        )
    ]
    put = Put(Place(file, line("x = jnp"), "main"), 0.0, 1.0, 1 << 20, again=False)
    looked = StackSample(kind, innermost, 0.0, 1.0, NOWHERE, tuple(callers))
    (sample,) = reclassified_samples(Log("a", samples=[looked], compiled=steps, puts=[put]))
    assert (sample.kind, sample.at.line) == (as_kind, line(at))
    assert sample.inside == (innermost if sample.at != innermost else NOWHERE)
