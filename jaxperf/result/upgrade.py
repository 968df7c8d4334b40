"""Convert results of schemas 1 and 2: lists of measurements, series, facts and claims become blocks.

Older files pack roles into names ("jax/8.1 MLP/aot", "loss/2 devices, seed 0", "compile_s"). Only this module
reads such names. Values that do not fit are left as they are, and are rejected when the file is loaded.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from jaxperf.result.record import SCHEMA_VERSION

Row = dict[str, Any]
_UNIT_ENDS = (("_bytes_per_s", "bytes/s"), ("_bytes", "bytes"), ("_per_s", "images/s"), ("_s", "s"))
_HELD = {True: ("holds", "right"), False: ("does not hold", "not stated"), None: ("undecided", "undecided")}


def upgraded(body: Row, version: int) -> Row:
    """The JSON object of a result in the current schema.

    Raises:
      TypeError: a list holds something that is not an object.
    """
    if version >= 3:
        return body
    lists = {
        name: _rows(body, name) for name in ("measurements", "series", "timelines", "claims", "references")
    }
    peers = body.get("experiment") == "peers"
    blocks: list[Row] = [{"kind": "claim", **_claim(c)} for c in lists["claims"]]
    blocks += _tables(lists["measurements"], lists["references"], peers=peers)
    blocks += _lines(lists["series"], peers=peers)
    if lists["timelines"]:
        blocks.append({"kind": "timelines", "title": "Timelines", "runs": lists["timelines"]})
    facts = body.get("facts", {})
    if not isinstance(facts, dict):
        raise TypeError(f"result.facts is {type(facts).__name__}, not an object")
    blocks += [{"kind": "fact", "name": k, "value": v, "unit": _unit(k)} for k, v in facts.items()]
    notes = body.get("notes", [])
    blocks += [{"kind": "note", "text": n} for n in (notes if isinstance(notes, list) else [notes])]
    kept = {k: v for k, v in body.items() if k not in (*lists, "facts", "notes")}
    return {**kept, "blocks": blocks, "schema_version": SCHEMA_VERSION}


def _rows(body: Row, name: str) -> list[Row]:
    rows = body.get(name, [])
    if not isinstance(rows, list):
        raise TypeError(f"result.{name} is {type(rows).__name__}, not a list")
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise TypeError(f"result.{name}[{i}] is {type(row).__name__}, not an object")
    return rows


def _claim(row: Row) -> Row:
    """One verdict became two; if the sentence did not hold, the prediction is unknown."""
    held = row.get("held")
    if "held" not in row or not (held is None or isinstance(held, bool)):
        raise TypeError(f"claim.held is {type(held).__name__}, not bool")
    holds, prediction = _HELD[held]
    return {**row, "holds": holds, "prediction": prediction}


def _tables(measurements: list[Row], references: list[Row], *, peers: bool) -> list[Row]:
    """Tables by the part they belong to and the row they were compared with; references last if alone."""
    found, names = [], set()

    def place(m: Row) -> tuple[str, str]:
        return str(_workload(m) if peers else m.get("group", "")), str(m.get("base", ""))

    for (title, base), group in groupby(measurements, key=place):
        rows = _unique([{**m, **(_roles(m) if peers else {})} for m in group])
        names |= {str(m.get("name")) for m in rows}
        beside = [r for r in references if r.get("beside") in {m.get("name") for m in rows}]
        known = base if base in {m.get("name") for m in rows} else ""
        found.append({"kind": "table", "title": title, "rows": rows, "base": known, "references": beside})
    left = [r for r in references if r.get("beside", "") not in names]
    return found + ([{"kind": "table", "title": "Published", "rows": [], "references": left}] if left else [])


def _unique(rows: list[Row]) -> list[Row]:
    """Make names unique within their table: the second is called "name (2)"."""
    seen: dict[str, int] = {}
    for row in rows:
        name = str(row.get("name"))
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            row["name"] = f"{name} ({seen[name]})"
    return rows


def _lines(series: list[Row], *, peers: bool) -> list[Row]:
    """A figure for each family of series: those with the same name up to "/" or ", " and the same axes."""
    families: dict[tuple[str, str, str], list[Row]] = {}
    for s in series:
        name = str(s.get("name", ""))
        family = _workload(s) if peers else re.split(r"/|, ", name)[0] if re.search("/|, ", name) else ""
        families.setdefault((family, str(s.get("x_unit")), str(s.get("y_unit"))), []).append(s)
    return [
        {"kind": "lines", "title": family or y, "x": {"label": x, "unit": x}, "y": {"label": y, "unit": y},
         "curves": [{**s, **(_roles(s) if peers else {})} for s in some]}
        for (family, x, y), some in families.items()
    ]  # fmt: skip


def _roles(row: Row) -> Row:
    """The roles packed into "system/workload/configuration"."""
    system, _, rest = str(row.get("name", "")).partition("/")
    workload, _, configuration = rest.partition("/")
    return {"system": system, "workload": workload, "configuration": configuration} if workload else {}


def _workload(row: Row) -> str:
    return str(_roles(row).get("workload", ""))


def _unit(fact: str) -> str:
    """The unit that a fact's name ended with."""
    return next((unit for end, unit in _UNIT_ENDS if re.split(r"[/,]", fact)[0].endswith(end)), "")
