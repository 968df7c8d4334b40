"""Why JAX traced a function again: what differs between two calls, compared here or explained by JAX's log.

A call is described by the texts of its arguments by name: an array's is "float32[2,512]", a static value's is
its `repr`. Nothing here imports JAX.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

MISS = "TRACING CACHE MISS"
_UNSEEN = "never seen function:"
_FUNCTION = re.compile(
    rf"(?:{_UNSEEN}\s+|^  for )(?P<name>.+?)(?: id=\d+)?(?: defined at (?P<at>.+))?$", re.M
)
_CHANGE = re.compile(
    r"\* at (?P<what>.+?), now (?P<now>.+?) and before (?P<before>.+?)"
    r"(?=https?://|,? so |\n\s*(?:\* at |where weak_type)|\s*\Z)",
    re.S,  # a printed value may take several lines
)
_AVAL = re.compile(r"[\w<>.]+\[")  # the type of an array
_MESH = re.compile(r"\(\{(.*)\}\)")  # the axes of its mesh, behind its type
_SPLIT = re.compile(r"@(?:\([^)]*\)|\w+)")  # the axes over which a dimension is split
_NUMBER = re.compile(r"[-(]?[\d.]+|[-(]?(?:nan|inf)|True|False")  # of Python
_STATIC = re.compile(r"Static\(val=(.*)\)\Z", re.S)
# of a Flax graph: the name of an attribute, and the number, the function's name or the class that it is
_STATIC_PART = re.compile(
    r"\('(\w+)', Static\(value=(?:['\"]|<(?:function )?(?:[\w.]+\.<locals>\.<?)?)?([\w.-]+)"
)
NO_MESH = "no mesh"
LONGEST_VALUE = 60  # characters of a value in a reason


@dataclass(frozen=True)
class Change:
    """A difference from the nearest earlier call: an argument, and its type or value before and now."""

    kind: str  # "shape", "dtype", "weak type", "placement", "static value", "structure", "setting"
    what: str
    before: str
    now: str

    def __str__(self) -> str:
        if not self.what:
            return self.now
        start = 0
        if max(len(self.before), len(self.now)) > LONGEST_VALUE:  # show where they begin to differ
            start = max(0, _common_length(self.before, self.now) - LONGEST_VALUE // 3)
        return f"{self.what}: {shorten_value(self.before, start)} -> {shorten_value(self.now, start)}"


def _common_length(a: str, b: str) -> int:
    pairs = enumerate(zip(a, b))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


class Part(NamedTuple):
    """The attribute `name` of an object of class `owner`; its value has class `kind`."""

    name: str
    kind: str
    owner: str


def differing_part(before: str, now: str) -> Part | None:
    """Return the static part that differs between two printed Flax graphs; None if that is not clear."""
    equal = _common_length(before, now)
    if equal == min(len(before), len(now)):
        return None
    owner = re.search(r"NodeDef\(type='(\w+)'", now)
    parts = [m for m in _STATIC_PART.finditer(now) if m.start(2) <= equal]
    return Part(parts[-1][1], parts[-1][2], owner[1]) if parts and owner else None


def shorten_value(value: str, start: int = 0) -> str:
    end = start + LONGEST_VALUE
    before = "..." if start > 0 else ""
    after = "..." if end < len(value) else ""
    return f"{before}{value[start:end]}{after}"


class Explanation(NamedTuple):
    """Why a function was traced: its name, file, line and changes (none for a new function object)."""

    name: str
    defined: str
    changes: tuple[Change, ...]


def parse_explanation(message: str) -> Explanation:
    """Parse an explanation of a cache miss.

    JAX may change its wording, so what is not recognized becomes one change of kind "other".
    """
    function = _FUNCTION.search(message)
    name, defined = (function["name"], function["at"] or "") if function else ("", "")
    if _UNSEEN in message:
        return Explanation(name, defined, ())
    changes = tuple(
        _change(m["what"], m["before"].strip(), m["now"].strip()) for m in _CHANGE.finditer(message)
    )
    if not changes and "context" in message:
        detail = re.findall(r"\* (.+? differs: .+)", message)
        changes = (Change("setting", "", "", "; ".join(detail) or "a JAX setting or context changed"),)
    elif not changes:
        changes = (Change("other", "", "", message.strip().splitlines()[-1].strip()),)
    return Explanation(name, defined, changes)


def _change(what: str, before: str, now: str) -> Change:
    if "Static(" in now or "Static(" in before:
        return Change("static value", _argument(what), _static(before), _static(now))
    if what.startswith("input path") or not (_AVAL.match(before) and _AVAL.match(now)):
        return Change("structure", _argument(what), before, now)
    parts = zip(("shape", "dtype", "weak type"), _aval(before), _aval(now))
    kind = next((kind for kind, a, b in parts if a != b), "other")
    places = _place(before), _place(now)
    if kind == "other" and places[0] != places[1]:
        return Change("placement", what, *places)
    return Change(kind, what, before, now)


def _static(value: str) -> str:
    """Return a printed static value on one line, without comments; a Linen module prints several lines."""
    match = _STATIC.search(value)
    lines = (match[1] if match else value).splitlines()
    rows = [row.strip() for row in lines if not row.strip().startswith("#")]
    return " ".join(rows).replace("( ", "(").replace(" )", ")")


def _argument(path: str) -> str:
    """Return "rate" for "input path [1]['rate']", and "argument 2" for "input path [0][2]" or "args[2]"."""
    match = re.match(r"(?:input path \[[01]\]|args|kwargs)\[(.+?)\](.*)", path)
    if not match:
        return path
    name = f"argument {match[1]}" if match[1].isdigit() else match[1].strip("'")
    return f"{name}{match[2]}"


def _aval(text: str) -> tuple[str, str, str]:
    """Return shape, dtype and weak type of "f32[3@x,4]{weak_type=True}({Explicit: ('x',)})"."""
    dtype, _, rest = _MESH.sub("", _SPLIT.sub("", text)).partition("[")
    shape, _, tail = rest.partition("]")
    return shape, dtype, tail if "weak_type" in tail else ""


def _place(text: str) -> str:
    mesh = _MESH.search(text)
    return f"a mesh with {mesh[1]}{''.join(_SPLIT.findall(text))}" if mesh and mesh[1] else NO_MESH


def dimensions(text: str) -> tuple[int, ...]:
    numbers = _aval(text)[0].split(",")
    return tuple(int(n) for n in numbers) if all(n.strip().isdigit() for n in numbers) else ()


def argument_changes(
    old: Mapping[str, str], new: Mapping[str, str], weak: Collection[str] = ()
) -> tuple[Change, ...]:
    """Return the changes of arguments; an array whose type is `weak` has that of a number in its place."""
    changes = []
    for name, now in new.items():
        before = old.get(name, "nothing")
        if before == now:
            continue
        arrays = [bool(_AVAL.match(text)) for text in (before, now)]
        if all(arrays):
            changes.append(_change(name, before, now))
        else:
            # no array is a static value, so a number in its place is none either
            number = any(arrays) and (_NUMBER.match(before) or _NUMBER.match(now))
            if not number or name not in weak:
                changes.append(Change("weak type" if number else "static value", name, before, now))
    return tuple(changes)
