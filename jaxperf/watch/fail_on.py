"""`jaxperf watch --fail-on`: the kinds of findings that a build can refuse."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator

from jaxperf.errors import JaxperfError
from jaxperf.watch.finding import Finding

ANY = "any"
# The causes of each kind, as `Finding.cause` names them.
KINDS: dict[str, frozenset[str]] = {
    "retrace": frozenset((
        "new function", "new body", "shape", "static value", "static object", "static part", "placement",
        "dtype", "weak type", "structure", "cleared", "eager recompiles", "eager shapes",
    )),
    "sync": frozenset(("wait", "logging", "element reads")),
    "transfer": frozenset(("transfer", "moved", "put again", "puts one by one", "list")),
    "eager": frozenset(("eager", "eager copy")),
    "data": frozenset(("data", "numpy")),
    "python": frozenset(("python", "dispatch", "module dispatch", "write", "module state")),
    "memory": frozenset(("donation", "constant")),
    "program": frozenset(("unrolled", "constant work", "callback", "on the cpu", "shards", "replicated")),
    "float64": frozenset(("float64", "all float64")),
    "debug": frozenset(("debug setting",)),
}  # fmt: skip


def parse_kinds(text: str) -> frozenset[str]:
    """Return the kinds in a comma-separated list, such as "retrace,sync"; none for "".

    Raises:
      JaxperfError: the list has an unknown kind, or commas alone.
    """
    kinds, known = frozenset(filter(None, text.split(","))), (*KINDS, ANY)
    if text and not kinds:
        raise JaxperfError(f"--fail-on {text!r} names no kind; it takes {', '.join(known)}")
    if unknown := sorted(kinds.difference(known)):
        near = difflib.get_close_matches(unknown[0], known, n=1)
        suggestion = f"did you mean {near[0]!r}? " if near else ""
        raise JaxperfError(f"--fail-on has no kind {unknown[0]!r}; {suggestion}it takes {', '.join(known)}")
    return kinds


def kind_of(finding: Finding) -> str:
    """Return the kind of a finding."""
    return next((kind for kind, causes in KINDS.items() if finding.cause in causes), "retrace")


def failures(findings: Collection[Finding], kinds: Collection[str]) -> Iterator[str]:
    """Yield an error message for each finding of these kinds."""
    from jaxperf.result.formatting import format_quantity
    from jaxperf.watch.advice.advice import advice_for

    for finding in findings:
        if (kind := kind_of(finding)) in kinds or ANY in kinds:
            saving = format_quantity(finding.seconds, "s")
            title = advice_for(finding).title
            yield f"error: --fail-on {kind}: {title}, {finding.at}: saves up to {saving}"
