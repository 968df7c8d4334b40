"""Write docs/watch-causes.md: the table of causes that `jaxperf watch` reports.

python docs/watch_causes.py
"""

from pathlib import Path

from jaxperf.result.formatting import format_list
from jaxperf.watch.rules import CAUSES
from jaxperf.watch.rules.libraries import CALLS, MODULES
from jaxperf.watch.rules.table import KINDS

PAGE = Path(__file__).resolve().parent / "watch-causes.md"
HEAD = """# Causes that watch finds

[`jaxperf watch`](watch.md) reports {count} causes of lost time. Their names are those in the JSON of a
report and in the [gallery](gallery.md), and their kinds those of `--fail-on`. A report names the
program's own functions and variables where this table has *f* and *x*, and may have another form of the
change, which fits the statement. The last column says how the seconds of a finding are known:
*measured* means timed in this run ("saves 1 s"), *estimated* means that windows of the profiler stand
for the whole run ("saves about 1 s"), and *bound* that the change may save much less ("saves at most
1 s").

In programs with {libraries}, changes are in the words of these libraries.

`python docs/watch_causes.py` writes this page from the table in `jaxperf/watch/rules/`.
"""
NAMES = {
    "name": "f", "argument": "x", "decorator": "@jax.jit", "wrapper": "jax.jit", "made": "", "steps": "",
    "axis": "", "environment_name": "JAX_...",
}  # fmt: skip
LIBRARY_NAMES = {
    "flax": "Flax NNX", "equinox": "Equinox", "numpyro": "NumPyro", "keras": "Keras on JAX",
    "optax": "Optax", "diffrax": "Diffrax", "optimistix": "Optimistix", "lineax": "Lineax",
    "blackjax": "BlackJAX",
}  # fmt: skip


def page() -> str:
    """Return the page."""
    names = dict.fromkeys(name.partition(".")[0] for name in (*MODULES, *(name for name, *_ in CALLS)))
    libraries = format_list([LIBRARY_NAMES[name] for name in names])
    lines = [HEAD.format(count=len(CAUSES), libraries=libraries)]
    for kind in KINDS:
        lines += [
            f"## {kind}",
            "",
            "| cause | what was seen | what to change | seconds |",
            "| --- | --- | --- | --- |",
        ]
        for cause in sorted((c for c in CAUSES.values() if c.kind == kind), key=lambda c: c.name):
            change = cause.usual.partition("\n")[0].format(**NAMES).rstrip(":")
            lines.append(f"| {cause.name} | {cause.title} | {change} | {cause.confidence} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
