"""A rule about JAX's debug settings, which slow a program down, and the findings that they explain."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxperf.watch.observe.compiles import TRACE, Compiled
from jaxperf.watch.observe.sampler import DISPATCH, EAGER
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules.table import ASYNCHRONOUS, EXPLAINS, Cause, Finding, Form, rule
from jaxperf.watch.source import statements

_WHILE_TRACING = ("jax_check_tracer_leaks", "jax_enable_checks")
_FOR_NOTHING = ("jax_log_compiles",)  # costs almost nothing: one line per program
_EFFECTS = {
    "jax_disable_jit": "runs jitted functions one operation at a time",
    "jax_debug_nans": "reads every result on the host, so that each call waits for the device",
    "jax_debug_infs": "reads every result on the host, so that each call waits for the device",
    "jax_debug_key_reuse": "looks for keys that are used twice in each call",
    "jax_check_tracer_leaks": "looks for what a trace leaves behind, and traces more often",
    "jax_enable_checks": "checks JAX's own data while it traces",
}
_DONATIONS = ("donation", "eager copy", "module state")
_READS = ("jax_debug_nans", "jax_debug_infs")  # they read results with `np.asarray`
_OTHER_NAMES = {"jax_check_tracer_leaks": "checking_leaks"}  # context managers with another name
_ONE_BY_ONE = ("eager", "eager recompiles", "eager shapes", "new body")
EXPLAINS["jax_disable_jit"] = (*_ONE_BY_ONE, *_DONATIONS)
# JAX does not donate then, and runs a function that gave a NaN again, one operation at a time
EXPLAINS |= dict.fromkeys(_READS, ("wait", *_ONE_BY_ONE, *_DONATIONS))


DEBUG_SETTING = Cause(
    "debug setting", "debug",
    "a debug setting of JAX is on", ASYNCHRONOUS,
    Form(
        "{name} is on, perhaps by {environment_name} in the environment; leave it on only while you look for"
        " a mistake."
    ),
    forms={
        "line": Form(
            "Leave it on only while you look for the mistake that it finds."
        ),
    },
    choose=lambda f: "line" if f.argument else "",
)  # fmt: skip


@rule(DEBUG_SETTING)
def find_debug_settings(analysis: Analysis) -> Iterator[Finding]:
    """Find JAX's debug settings that were on while something was traced."""
    from jaxperf.measure.compile_log import DEBUG_FLAGS  # which imports JAX

    for flag in DEBUG_FLAGS:
        first = analysis.record.settings.get(flag)
        if first is not None and flag not in _FOR_NOTHING:
            first = first or next((c.at for c in analysis.record.compiled), first)
            what, line = _EFFECTS.get(flag, "is for looking for mistakes"), set_at(flag, analysis, first)
            yield Finding(
                "debug setting", line or first, _cost_s(flag, analysis), f"{flag} is on, which {what}", flag,
                argument=str(line or ""),
            )  # fmt: skip


def _cost_s(flag: str, analysis: Analysis) -> float:
    """Return the seconds that a setting may cost: tracing, or devices' idle time during dispatch."""
    if flag in _WHILE_TRACING:
        return sum(c.seconds(TRACE) for c in analysis.record.compiled)
    compiled_s = sum(c.total_s for c in _one_by_one(analysis)) if flag == "jax_disable_jit" else 0.0
    return compiled_s + _dispatching_s(flag, analysis)


def _one_by_one(analysis: Analysis) -> Iterator[Compiled]:
    """Yield operations that were compiled one by one inside functions that a decorator jits."""
    for c in analysis.record.compiled:
        if not c.explained and any(statements.in_jitted(at) for at in (c.at, *c.callers) if at):
            yield c


def _dispatching_s(flag: str, analysis: Analysis) -> float:
    calls = (DISPATCH, EAGER)
    if not analysis.record.activity.windows:
        return sum(analysis.front_s[kind] for kind in calls)
    reads_s = sum(line.lost_s for line in analysis.lines if line.kind == "np.asarray" and flag in _READS)
    return sum(analysis.idle_at(lambda s: s.kind in calls).values()) + reads_s


def set_at(flag: str, analysis: Analysis, first: Place) -> Place | None:
    """Return the line that turns a setting on, from the reader's files; None if it is not found."""
    names = flag.removeprefix("jax_"), _OTHER_NAMES.get(flag, flag)
    places = (p for c in analysis.record.compiled for p in (c.at, *c.callers))
    files = [p.file for p in (first, *places)] + analysis.record.modules
    for file in dict.fromkeys(files):
        calls = (n for n in ast.walk(statements.syntax_tree(file)) if isinstance(n, ast.Call | ast.Assign))
        if lines := [node.lineno for node in calls if _turns_on(node, names)]:
            return Place(file, min(lines))
    return None


def _turns_on(node: ast.Call | ast.Assign, names: tuple[str, str]) -> bool:
    """Return whether a call or an assignment names a setting, or its variable, and no False."""
    parts = list(ast.walk(node))
    values = [n.value for n in parts if isinstance(n, ast.Constant)]
    told = [v for v in values if isinstance(v, str)] + [n.attr for n in parts if isinstance(n, ast.Attribute)]
    told += [n.id for n in parts if isinstance(n, ast.Name)]
    if isinstance(node, ast.Call):
        turns = statements.last_name(node.func) in ("update", "setdefault", "setenv", *names)
    else:
        turns = isinstance(node.targets[0], ast.Subscript)  # os.environ["JAX_DEBUG_NANS"] = "1"
    named = any(name in text.lower() for text in told for name in names)
    return turns and named and False not in values
