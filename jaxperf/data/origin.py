"""The four files as Zalando published them: names, sizes, SHA-256, and where they lie.

Debian's package ships the same deflate streams under a gzip header without name and time (`gzip -n`). With
the header put back, its files are the origin's to the last byte, which their SHA-256 proves. TensorFlow
Datasets, which accepts the origin's checksums only, can so be fed on a machine without network.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

ORIGIN_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"  # the one TFDS uses
_GZIP_FIXED = b"\x1f\x8b\x08"  # magic, deflate
_GZIP_NAME_FLAG = 0x08
_GZIP_HEADER_BYTES = 10


@dataclass(frozen=True)
class OriginFile:
    """One published file.

    Attributes:
      name: file name, NAME.gz.
      size_bytes: its size.
      sha256: its checksum, hexadecimal.
      packed_at: the time inside its gzip header, Unix seconds.
    """

    name: str
    size_bytes: int
    sha256: str
    packed_at: int


ORIGIN_FILES = (
    OriginFile(
        "train-images-idx3-ubyte.gz",
        26_421_880,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        1_504_176_606,
    ),
    OriginFile(
        "train-labels-idx1-ubyte.gz",
        29_515,
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        1_504_176_606,
    ),
    OriginFile(
        "t10k-images-idx3-ubyte.gz",
        4_422_102,
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        1_504_176_627,
    ),
    OriginFile(
        "t10k-labels-idx1-ubyte.gz",
        5_148,
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        1_504_176_627,
    ),
)


def adopt(folder: Path, cache: Path) -> tuple[str, ...]:
    """Copies into `cache` each of the origin's files that `folder` holds, as published or as Debian repacked
    it.

    Files already whole in `cache` are left alone, files that are neither are passed over.

    Returns:
      The names copied.
    """
    copied = []
    for file in ORIGIN_FILES:
        target = cache / file.name
        if published_bytes(target, file) is not None:
            continue
        data = published_bytes(folder / file.name, file)
        if data is not None:
            _write_whole(target, data)
            copied.append(file.name)
    return tuple(copied)


def published_bytes(path: Path, file: OriginFile) -> bytes | None:
    """`file` as published, from a copy or from Debian's repacked one; None where `path` is neither."""
    try:
        with path.open("rb") as stream:
            data = stream.read(file.size_bytes + 1)
    except OSError:
        return None
    for candidate in (data, _with_header(data, file)):
        if hashlib.sha256(candidate).hexdigest() == file.sha256:
            return candidate
    return None


def _with_header(data: bytes, file: OriginFile) -> bytes:
    """`data` with its bare gzip header replaced by one that carries the origin's name and time."""
    if data[:4] != _GZIP_FIXED + b"\0":
        return b""
    start = _GZIP_FIXED + struct.pack("<BI", _GZIP_NAME_FLAG, file.packed_at)
    level_and_system, stream = data[8:_GZIP_HEADER_BYTES], data[_GZIP_HEADER_BYTES:]
    return start + level_and_system + file.name.removesuffix(".gz").encode() + b"\0" + stream


def _write_whole(target: Path, data: bytes) -> None:
    """Writes beside `target` and renames, so that a reader sees the whole file or none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
