"""Results as files: JSON that is written whole or not at all, and read with suspicion."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from jaxperf.errors import JaxperfError
from jaxperf.measure.record import (
    SCHEMA_VERSION,
    Claim,
    Environment,
    Measurement,
    Reference,
    Result,
    Series,
)

FORMAT = "jaxperf-result"
T = TypeVar("T")


def to_json(result: Result) -> str:
    """The result as JSON text, keys in the order of the fields; NaN and infinity are refused (ValueError)."""
    body = {"format": FORMAT, **dataclasses.asdict(result)}
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False, default=_plain)


def save_result(result: Result, path: Path) -> None:
    """Write `result` to `path` as JSON; missing folders are made.

    Raises:
      JaxperfError: the path cannot be written.
    """
    write_whole(path, to_json(result) + "\n")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `content` (text as UTF-8) to `path`; no reader ever sees half of it: a part file, then a rename.

    Raises:
      JaxperfError: the path cannot be written.
    """
    part = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as f:
            f.write(content.encode() if isinstance(content, str) else content)
        Path(part).chmod(0o644)  # mkstemp keeps other users out
        Path(part).replace(path)
    except OSError as e:
        if part:
            Path(part).unlink(missing_ok=True)
        raise JaxperfError(f"cannot write {path}: {e.strerror}; give another path") from None


def load_result(path: Path) -> Result:
    """Read a result written by `Result.save`, of this or an older schema version.

    Raises:
      JaxperfError: no such file, not JSON, another program's JSON, damaged, or of a newer schema.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise JaxperfError(f"cannot read {path}: {e.strerror}") from None
    except (ValueError, RecursionError):
        raise JaxperfError(f"{path} is not JSON; it is damaged or another program's file") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise JaxperfError(f"{path} is not a jaxperf result (no format {FORMAT!r} in it)")
    version = body.get("schema_version")
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise JaxperfError(
            f"{path} has schema version {version!r}, this jaxperf reads 1 to {SCHEMA_VERSION}; upgrade it"
        )
    try:
        return _result(body)
    except (TypeError, ValueError, KeyError, AttributeError) as e:
        raise JaxperfError(f"{path} is damaged: {e}") from None


def _result(body: dict[str, Any]) -> Result:
    nested = {
        "measurements": Measurement,
        "series": Series,
        "claims": Claim,
        "references": Reference,
    }
    parts: dict[str, Any] = {k: tuple(_build(c, row) for row in body.get(k, ())) for k, c in nested.items()}
    parts["environment"] = _build(Environment, body["environment"])
    return _build(Result, {**body, **parts})


def _build(cls: type[T], row: Mapping[str, Any]) -> T:
    """A dataclass from JSON: unknown keys are dropped, lists become tuples, plain types are checked."""
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items() if k in known}
    for name, value in values.items():
        _check_type(f"{cls.__name__}.{name}", known[name].type, value)
    return cls(**values)


def _check_type(name: str, annotation: Any, value: Any) -> None:
    """Refuse a value of another kind than the field's annotation (a string) says."""
    kinds: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "int": (int,),
        "float": (int, float),
        "bool": (bool,),
    }
    head = str(annotation).split("[")[0]
    allowed = {**kinds, "tuple": (tuple,), "Mapping": (Mapping,)}.get(head)
    if allowed and not isinstance(value, allowed):
        raise TypeError(f"{name} is {type(value).__name__}, not {annotation}")
    if annotation == "tuple[float, ...]" and not all(isinstance(v, int | float) for v in value):
        raise TypeError(f"{name} holds something that is no number")


def _plain(value: Any) -> Any:
    """JSON for what asdict leaves alone: paths, and NumPy or JAX scalars."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"cannot store {type(value).__name__} in a result: {value!r}")
