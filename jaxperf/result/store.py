"""Save results as JSON files, completely or not at all, and check them fully when reading them."""

import contextlib
import dataclasses
import errno
import json
import math
import secrets
import stat
import tempfile
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from jaxperf.errors import JaxperfError
from jaxperf.result.record import FINDINGS_VERSION, SCHEMA_VERSION, Block, Failed, Found, Result

FORMAT = "jaxperf-result"
LARGEST = 16 * 2**20  # bytes of a file that is read


def to_json(result: Result) -> str:
    """Return the result as JSON text."""
    body = {
        "format": FORMAT,
        **dataclasses.asdict(result),
        "blocks": [
            {"kind": type(block).__name__.lower(), **dataclasses.asdict(block)} for block in result.blocks
        ],
        # For other programs; `load_result` reads the blocks
        "measurements": [dataclasses.asdict(m) for m in result.measurements],
        "claims": [dataclasses.asdict(claim) for claim in result.claims],
        "facts": result.facts,
        "failed": [f"{failed.part}: {failed.error}" for failed in result.of(Failed)],
        "findings_version": FINDINGS_VERSION,
        "findings": [finding.fields for finding in result.of(Found)],
    }
    shown = json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False, default=_plain)
    return shown.encode("utf-8", "backslashreplace").decode()  # bytes of argv that are not UTF-8


def save_result(result: Result, path: Path) -> None:
    """Write `result` to `path` as JSON, create missing folders, and remove the file of `save_so_far`.

    Raises:
      JaxperfError: the path cannot be written.
    """
    write_whole(path, to_json(result) + "\n")
    with contextlib.suppress(OSError):
        so_far(path).unlink()


def save_so_far(result: Result, path: Path) -> Path:
    """Write the result of an unfinished run, marked incomplete, next to its final path; return the path used.

    The complete result of an earlier run thus stays until this run is complete.
    """
    partial = so_far(path)
    write_whole(partial, to_json(dataclasses.replace(result, incomplete=True)) + "\n")
    return partial


def so_far(path: Path) -> Path:
    """Return the path for the incomplete result of a run whose complete result will be `path`."""
    return path.with_name(f"{path.stem}.incomplete{path.suffix}")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write `content` (text as UTF-8) to a temporary file, and rename it to `path`.

    A file that exists keeps its permissions. Links are followed. Anything but a regular file (/dev/stdout, a
    pipe) is written to directly.
    """
    data = content.encode() if isinstance(content, str) else content
    with _failure_named(path, "give another path"):
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace(path.resolve(), data)


def check_writable(path: Path, advice: str = "give another path") -> Path:
    """Check, before a long run, that `path` can be written; nothing is made.

    Returns:
      the absolute path, which stays the same if the user's code changes the working directory.
    """
    with _failure_named(path, advice):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if path.is_file() or not path.exists():
            folder = next(folder for folder in path.resolve().parents if folder.exists())
            if not folder.is_dir():
                raise FileExistsError
            tempfile.TemporaryFile(dir=folder).close()
    return path.absolute()


@contextlib.contextmanager
def _failure_named(path: Path, advice: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        reason = e.strerror or e
        if isinstance(e, FileExistsError):
            reason = "a file stands where its folder should be"
        raise JaxperfError(f"cannot write {path}: {reason}; {advice}") from None


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # `mkstemp` would exclude other users
    part = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as f:
            if path.exists():
                part.chmod(stat.S_IMODE(path.stat().st_mode))
            f.write(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load_result(path: Path) -> Result:
    """Read a result written by `save_result`, of this schema version.

    Raises:
      JaxperfError: the file is missing, not a regular one, over 16 MiB, not JSON, another program's JSON,
        damaged, or of another schema version.
    """
    try:
        file_status = path.stat()
        if not stat.S_ISREG(file_status.st_mode):  # reading a pipe or a device may never end
            raise JaxperfError(f"cannot read {path}: it is not a file; give a result's JSON file")
        size = file_status.st_size
        if size > LARGEST:
            raise JaxperfError(f"{path} has {size:,} bytes, which no result has; give another file")
        body = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as e:
        raise JaxperfError(f"cannot read {path}: {e.strerror or e}") from None
    except (ValueError, RecursionError):
        raise JaxperfError(f"{path} is not JSON; it is damaged or another program's file") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise JaxperfError(f"{path} is not a jaxperf result (no format {FORMAT!r} in it)")
    version = str(body.get("schema_version"))[:40]
    if version != str(SCHEMA_VERSION):
        raise JaxperfError(
            f"{path} has schema version {version!r}, not {SCHEMA_VERSION}; run it again, or upgrade jaxperf"
        )
    try:
        return _typed(Result, body, "result")
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise JaxperfError(f"{path} is damaged: {str(e)[:200]}") from None


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Return a value read from JSON as the annotated type of a dataclass's field.

    Objects become the dataclasses that they represent, without unknown keys, and lists become tuples.
    Integers become floats where floats are expected; bools are accepted as neither.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return _frozen(value)
    if hint is Block:
        name = value.get("kind") if isinstance(value, dict) else None
        hint = next((cls for cls in inner if cls.__name__.lower() == name), None)
        if not hint:
            raise TypeError(f"{where} is of unknown kind {str(name)[:40]!r}")
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        cls: Any = hint
        fields = {}
        for field in dataclasses.fields(cls):
            if field.name in value:
                fields[field.name] = _typed(field.type, value[field.name], f"{where}.{field.name}")
            elif field.default is field.default_factory is dataclasses.MISSING:
                raise TypeError(f"{where} has no {field.name}")
        return cls(**fields)
    if origin is tuple and isinstance(value, list):
        return tuple(_typed(inner[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {k: _typed(inner[1], v, f"{where}[{k!r}]") for k, v in value.items()}
    if origin is Literal and isinstance(value, str) and value in inner:
        return value
    plain = inner if origin in (types.UnionType, typing.Union) else (hint,)
    if type(value) is int and float in plain and int not in plain:
        value = float(value)  # JSON may have 8 for 8.0; NumPy would make objects of a large integer
    if type(value) in plain and (not isinstance(value, int | float) or math.isfinite(value)):
        return value
    raise TypeError(f"{where} is {type(value).__name__}, not {getattr(hint, '__name__', hint)}")


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return {k: _frozen(v) for k, v in value.items()} if isinstance(value, dict) else value


def _plain(value: Any) -> Any:
    """Return a path or a NumPy or JAX scalar, which `asdict` does not convert, as a plain value."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"cannot store {type(value).__name__} in a result: {value!r}")
