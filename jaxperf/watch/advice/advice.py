"""Advice for a finding, with the names of the reader's program and the section that explains it."""

from __future__ import annotations

import ast
from dataclasses import replace

from jaxperf.watch.advice.examples import EXAMPLES
from jaxperf.watch.advice.texts import TEXTS
from jaxperf.watch.finding import Advice, Finding
from jaxperf.watch.source import loop_body, statements

_TEXTS = {
    cause: Advice(title, change, section, EXAMPLES.get(cause, ""))
    for section, causes in TEXTS.items()
    for cause, (title, change) in causes.items()
}
_NEEDLESS = ("block_until_ready", "effects_barrier")
_OTHER = Advice(
    "it was traced again",
    "Keep what the reason names the same on every call.",
    "8.1.3 When is a function traced again?",
)


def advice_for(finding: Finding) -> Advice:
    """Return the advice for a finding, with its own names filled in."""
    cause = _cause(finding)
    template, name = _TEXTS.get(cause, _OTHER), finding.name.removeprefix("jit_")
    change = template.change.format(
        name=name,
        environment_name=name.upper(),
        argument=_argument(finding),
        wrapper=statements.jit_wrapper(finding.at.file, name),
    )
    return replace(template, change=change)


def _argument(finding: Finding) -> str:
    """Return the finding's argument: a static one by its parameter's name, others by the variable passed."""
    if finding.cause.startswith("static"):
        return statements.parameter_name(finding.at.file, finding.name, finding.argument)
    passed = statements.variable_passed(finding.at, finding.name, finding.argument)
    return passed or "the array"


def _cause(finding: Finding) -> str:
    """Return the key of the advice: the cause, made more specific by the finding's argument and statement."""
    if finding.cause == "wait" and finding.name in _NEEDLESS:
        return "needless wait"
    if finding.cause == "put again" and not statements.innermost(finding.at, loop_body.LOOP):
        return "put again in a function"
    if finding.cause == "new function" and finding.argument:
        return "new function of values"
    if finding.cause == "all float64" and not finding.argument:
        return "all float64 at a call"
    if finding.cause == "eager" and finding.argument.endswith(".init"):
        return "eager init"
    if finding.cause == "eager" and finding.argument:
        return "eager method" if statements.is_method(finding.at) else "eager function"
    if finding.cause == "eager" and statements.yields(finding.at):
        return "eager generator"
    if finding.cause == "callback" and "debug." in finding.at.source:
        return "debug callback"
    if finding.cause == "donation" and finding.argument:
        return "donation of arguments"
    if finding.cause == "data" and finding.argument:
        return "slow data"
    if finding.cause == "debug setting" and finding.argument:
        return "debug setting in a line"
    if finding.cause == "wait" and finding.argument:
        return "wait for large arrays"
    if finding.cause == "wait" and loop_body.comes_back(finding.at):
        return "wait for the next turn"
    if finding.cause == "wait" and isinstance(statements.innermost(finding.at, ast.stmt), ast.Return):
        return "wait for what is returned"
    if finding.cause == "wait" and (loop_body.decides(finding.at) or statements.is_branch(finding.at)):
        return "wait for a test"
    if finding.cause == "python" and statements.gives_a_value(finding.at):
        return "python for the next step"
    keyword = statements.statement_rows(finding.at)[0].partition(" ")[0].removeprefix("el")
    return f"wait in {keyword}" if finding.cause == "wait" and keyword in ("while", "if") else finding.cause
