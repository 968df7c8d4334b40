"""Where results come from, in words: for the first screen, and in full for repeating one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from jaxperf.report.words import shown
from jaxperf.result import Environment, Result


def machine(results: Sequence[Result]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What the first screen says about machine and software: each different answer with its sections."""
    asked: dict[str, Callable[[Environment], str]] = {
        "Machine": _hardware,
        "Software": _software,
        "Devices": _devices,
        "Data": lambda e: e.data_source,
    }
    table = [(name, _distinct([(ask(r.environment), r) for r in results])) for name, ask in asked.items()]
    if commits := list(dict.fromkeys(r.environment.commit for r in results if r.environment.commit)):
        table.append(("Code", [(f"commit {', '.join(commits)}", "")]))
    days = sorted(r.started_at for r in results if r.started_at)
    if days:
        first, last = when(days[0]), when(days[-1])
        same_day = last[:11] if first[:11] == last[:11] and first.endswith("UTC") else ""
        words = f"{first.removesuffix(' UTC' if same_day else '')} to {last.removeprefix(same_day)}"
        table.append(("Measured", [(first if first == last else words, "")]))
    return [(name, answers) for name, answers in table if answers]


def _distinct(answers: Sequence[tuple[str, Result]]) -> list[tuple[str, str]]:
    """Each different answer once, with the sections that it applies to ("" if it applies to all)."""
    found: dict[str, list[str]] = {}
    for words, result in answers:
        if words:
            found.setdefault(words, []).append(result.section or result.title or result.experiment)
    return [(w, "" if len(found) == 1 else ", ".join(dict.fromkeys(where))) for w, where in found.items()]


def _hardware(e: Environment) -> str:
    words = [e.cpu, f"{e.cores} cores" if e.cores else ""]
    return ", ".join(filter(None, [*words, shown(e.memory_bytes, "bytes") if e.memory_bytes else ""]))


def _software(e: Environment) -> str:
    packages = {"jax": "JAX", "flax": "Flax"}
    words = [f"Python {e.python}"] if e.python else []
    return ", ".join(words + [f"{packages[k]} {v}" for k, v in e.versions.items() if k in packages])


def _devices(e: Environment) -> str:
    kinds = list(dict.fromkeys(d.partition(" ")[2] or d for d in e.devices))
    many = f"{len(e.devices)} devices" if len(e.devices) != 1 else "1 device"
    words = f"{e.backend}: {many}" if e.backend else ""
    words += f" ({', '.join(kinds)})" if kinds and kinds != [e.backend] else ""
    return words + (", fake" if e.devices_are_fake else "")


def when(stamp: str) -> str:
    """A time in ISO format, made readable; anything else as it is."""
    found = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?(?:\.\d+)?(\+00:00|Z)?$", stamp)
    return f"{found[1]} {found[2]}{' UTC' if found[4] else ''}" if found else stamp


def settings(result: Result) -> list[tuple[str, str]]:
    """Everything that a reader must know to repeat a result."""
    e = result.environment
    table = [
        ("Machine", _hardware(e)),
        ("System", e.platform),
        ("Python", e.python),
        ("Versions", ", ".join(f"{k} {v}" for k, v in e.versions.items())),
        ("Devices", ", ".join(e.devices) + (" (fake: they share one host)" if e.devices_are_fake else "")),
        ("GPUs", "; ".join(e.gpus)),
        ("Threads", str(e.threads) if e.threads else ""),
        ("Flags", ", ".join(f"{k}={v}" for k, v in e.flags.items())),
        ("Data", e.data_source),
        ("Commit", e.commit),
        ("Settings", ", ".join(f"{k}={printed(v)}" for k, v in result.config.items())),
        ("Started", when(result.started_at)),
        ("Took", shown(result.wall_s, "s") if result.wall_s else ""),
    ]
    return [(name, words) for name, words in table if words]


def printed(value: Any) -> str:
    """A setting in readable form: words as they are, anything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
