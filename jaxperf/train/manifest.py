"""The manifest of a checkpoint: what was saved, and the SHA-256 of every file, as JSON.

Orbax silently restores flipped bits, so nothing is restored before every file has been read and compared.
The manifest is written last and holds a digest of itself. It detects damage; it is not a signature, since
anybody who can write the files can also write a manifest. Nothing in a checkpoint is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.result.store import write_whole

NAME = "manifest.json"
FORMAT = "jaxperf-checkpoint"
VERSION = 3  # 3: epochs with the seconds of their evaluation
LARGEST = 16 * 2**20  # bytes; ResNet-18's manifest has 40 KiB
DEEPEST = 8  # folders; Orbax makes three


class DamagedError(Exception):
    """Why a checkpoint cannot be trusted, in a few words."""


@dataclass(frozen=True)
class About:
    """What a checkpoint says about itself.

    Attributes:
      step: how many updates led to it.
      arrays: each array's path in the saved tree, with dtype and shape, e.g. "float32[5,5,1,20]".
      training: what must be the same to resume the training: the optimizer, the data, the seed, ...
      surroundings: what must be the same for bitwise equal results: the way, the devices, the versions.
      progress: where the training is, and what it has measured so far.
    """

    step: int
    arrays: Mapping[str, str]
    training: Mapping[str, Any]
    surroundings: Mapping[str, Any]
    progress: Mapping[str, Any]


def write_manifest(folder: Path, about: About) -> None:
    """Write the manifest of all files under `folder`, which must not change any more.

    Raises:
      OSError: a file cannot be read.
      JaxperfError: the manifest cannot be written.
    """
    files = {name: [size, _sha256(folder / name)] for name, size in _files(folder)}
    body = {"format": FORMAT, "version": VERSION, **asdict(about), "files": files}
    write_whole(folder / NAME, json.dumps({**body, "sha256": _digest(body)}, indent=1, allow_nan=False))


def read_verified(folder: Path) -> About:
    """Read every file under `folder`, compare it with the manifest, and return what was saved.

    Raises:
      DamagedError: a file is missing, cut, changed or not listed, or the manifest itself is damaged.
      JaxperfError: the manifest is from another version of jaxperf.
    """
    try:
        about, listed = parse(_read(folder / NAME))
        sizes = dict(_files(folder))
        for name in sorted(sizes.keys() | listed.keys()):
            if name not in sizes:
                raise DamagedError(f"{name} is missing")
            if name not in listed:
                raise DamagedError(f"{name} is not in its manifest")
            size, digest = listed[name]
            if sizes[name] != size:
                raise DamagedError(f"{name} has {sizes[name]:,} bytes, not {size:,}")
            if _sha256(folder / name) != digest:
                raise DamagedError(f"the SHA-256 of {name} differs")
    except OSError as e:
        raise DamagedError(f"cannot read {Path(e.filename or folder).name}: {e.strerror or e}") from None
    return about


def parse(data: bytes) -> tuple[About, dict[str, tuple[int, str]]]:
    """Return what a manifest says, and the size and SHA-256 of each file, checking every part of it.

    Raises:
      DamagedError: not a manifest, or a changed one.
      JaxperfError: another version.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedError(f"{NAME} is not JSON") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise DamagedError(f"{NAME} is not a checkpoint's")
    if body.pop("sha256", None) != _digest(body):
        raise DamagedError(f"{NAME} was changed")
    version = body["version"] if _is(body.get("version"), int) else 0
    if version >= 1 and version != VERSION:
        fix = "upgrade jaxperf" if version > VERSION else "start again in another folder"
        number = str(version)[:20]
        raise JaxperfError(f"the checkpoint has version {number}, this jaxperf reads {VERSION}; {fix}")
    kinds = {"step": int, "arrays": dict, "training": dict, "surroundings": dict, "progress": dict}
    wrong = [key for key, kind in kinds.items() if not _is(body.get(key), kind)]
    files = body.get("files")
    if version < 1 or wrong or not isinstance(files, dict) or not all(map(_is_entry, files.values())):
        raise DamagedError(f"{NAME} lacks {', '.join(wrong) or 'files'}")
    return About(**{key: body[key] for key in kinds}), {name: tuple(row) for name, row in files.items()}


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_entry(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 2 and _is(row[0], int) and isinstance(row[1], str)


def _digest(body: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest without its own digest, independent of its formatting."""
    try:
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    except (ValueError, RecursionError):
        raise DamagedError(f"{NAME} cannot be compared") from None


def _read(path: Path) -> bytes:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        raise DamagedError(f"{path.name} is not a file of at most {LARGEST:,} bytes")
    return path.read_bytes()


def _files(folder: Path, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the path under `folder` and the size of each file but the manifest; refuse links and pipes."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False) and depth < DEEPEST:
                yield from _files(Path(entry.path), f"{name}/", depth + 1)
            elif not entry.is_file(follow_symlinks=False):
                raise DamagedError(f"{name} is not a file")
            elif name != NAME:
                yield name, entry.stat(follow_symlinks=False).st_size


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
