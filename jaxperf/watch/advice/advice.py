"""What to change for each cause, with the names of the reader's program, and the section that explains it."""

from __future__ import annotations

from dataclasses import replace

from jaxperf.watch.advice import programs, steps, traces
from jaxperf.watch.advice.examples import EXAMPLES
from jaxperf.watch.finding import Advice, Finding
from jaxperf.watch.source import loop_body, source_arguments, statements

_TEXTS = {
    "wait": Advice(
        "the front end waits on each turn of a loop",
        "Keep the array in the loop, for which nobody waits, and fetch all of them once after it, with "
        "jax.device_get.",
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "element reads": Advice(
        "elements of an array are read one by one",
        "Before the loop, bring {argument} to the host once, with numpy.asarray({argument}), and read the "
        "elements of that.",
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "wait in while": Advice(
        "the front end waits on each turn of a loop",
        "Give jax.lax.while_loop the test and a turn as functions of the arrays, or test every tenth turn, "
        "so that the device has the next ones to do meanwhile.",
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "wait in if": Advice(
        "the front end waits on each turn of a loop",
        "Choose with jnp.where, or with jax.lax.cond, which computes one side only.",
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "logging": Advice(
        "logging waits for the device on each step",
        "Log every hundredth step (if step % 100 == 0).",
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "data": Advice(
        "devices wait for data",
        "Read the next batch during a step: in a thread, or, if most of it is Python, which runs in one "
        "thread at a time, in processes (grain, or torch's DataLoader with workers).",
        "8.3.2 Parallel computation and communication",
    ),
    "numpy": Advice(
        "NumPy computes between two programs",
        "Do the same with jnp inside the jitted step: the values never leave the device.",
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "transfer": Advice(
        "large NumPy arrays are copied to the device on each call",
        "Call jax.device_put({argument}) once, or, where it varies, ahead of time for the next call.",
        "8.3.2 Parallel computation and communication",
    ),
    "eager": Advice(
        "operations are dispatched one by one",
        "Put this line and its neighbors into one jitted function; float() and print() stay outside.",
        "8.1.2 Computational performance",
    ),
}
_TEXTS["eager function"] = replace(
    _TEXTS["eager"],
    change="Jit {name} as a whole: @jax.jit above it (@nnx.jit or @eqx.filter_jit if it is given modules); "
    "float() and print() stay outside, and an if on an array becomes jnp.where.",
)
_TEXTS |= programs.TEXTS | steps.TEXTS | traces.TEXTS
_WAITS = {  # waits that are not needed
    "block_until_ready": "needless wait",
    "effects_barrier": "needless wait",
}
_OTHER = Advice(
    "it was traced again",
    "Keep what the reason names the same on every call.",
    "8.1.3 When is a function traced again?",
)


def advice_for(finding: Finding) -> Advice:
    """Return what to change, with the finding's own names, and an example where there is one."""
    cause = _cause(finding)
    template, name = _TEXTS.get(cause, _OTHER), finding.name.removeprefix("jit_")
    change = template.change.format(
        name=name,
        environment_name=name.upper(),
        argument=_argument(finding),
        wrapper=statements.jit_wrapper(finding.at.file, name),
    )
    return replace(template, change=change, example=EXAMPLES.get(cause, ""))


def _argument(finding: Finding) -> str:
    """Return the argument concerned: a static one by its parameter, others by the variable passed."""
    if finding.cause.startswith("static"):
        return source_arguments.parameter_name(finding.at.file, finding.name, finding.argument)
    passed = source_arguments.variable_passed(finding.at, finding.name, finding.argument)
    return passed or "the array"


def _cause(finding: Finding) -> str:
    """Return the cause, and what the line says about it: for a wait, what the value is wanted for."""
    if finding.cause == "wait" and finding.name in _WAITS:
        return _WAITS[finding.name]
    if finding.cause == "put again" and not statements.enclosing_nodes(finding.at, loop_body.LOOP):
        return "put again in a function"
    if finding.cause == "new function" and finding.argument:
        return "new function of values"
    if finding.cause == "all float64" and not finding.argument:
        return "all float64 at a call"
    if finding.cause == "eager" and finding.argument:
        return "eager function"
    if finding.cause == "debug setting" and finding.argument:
        return "debug setting in a line"
    if finding.cause == "wait" and loop_body.comes_back(finding.at):
        return "wait for the next turn"
    if finding.cause == "python" and statements.gives_a_value(finding.at):
        return "python for the next step"
    keyword = statements.statement_rows(finding.at)[0].partition(" ")[0].removeprefix("el")
    return f"wait in {keyword}" if finding.cause == "wait" and keyword in ("while", "if") else finding.cause
