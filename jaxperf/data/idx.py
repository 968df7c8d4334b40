"""IDX files, the format of MNIST and Fashion-MNIST, read with strict limits.

A header says what follows (a magic number with type and rank, then one 32-bit size per axis), so a damaged or
hostile file can be rejected before it costs memory. A file longer than the longest valid one is not read.
The header is unpacked first and alone, every field must be what Fashion-MNIST has, and the count is capped.
From a gzip stream exactly the announced bytes are unpacked, plus one that must not exist.

Letters: N examples, 28 x 28 pixels, 1 channel.
"""

from __future__ import annotations

import io
import struct
import zlib
from importlib.resources.abc import Traversable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxperf.errors import JaxperfError

SIDE = 28
CLASSES = 10
MAX_COUNT = 100_000  # a header that announces more examples is rejected
_IMAGES_MAGIC = 0x00000803  # two zero bytes, type 8 (unsigned byte), rank 3
_LABELS_MAGIC = 0x00000801
_KINDS = {_IMAGES_MAGIC: "images", _LABELS_MAGIC: "labels"}
_GZIP_MAGIC = b"\x1f\x8b"
_LARGEST = (
    MAX_COUNT * SIDE * SIDE + 2**16
)  # bytes of a file; a gzip stream may be a little longer than its contents

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int32]


class Splits(NamedTuple):
    """The four arrays: images uint8 (N, 28, 28, 1), labels int32 (N,)."""

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels


def read_images(path: Traversable) -> Images:
    """Read an IDX file of 28 x 28 images, raw or gzip (detected from its first bytes).

    Args:
      path: the file; anything with `open`, so also a package resource.

    Returns:
      uint8 (N, 28, 28, 1).

    Raises:
      JaxperfError: the file cannot be read, is not gzip despite its name, is damaged, truncated or too long,
        or its header is not that of 1 to 100,000 images of 28 x 28.
    """
    return _read_body(path, _IMAGES_MAGIC).reshape(-1, SIDE, SIDE, 1)


def read_labels(path: Traversable) -> Labels:
    """Read an IDX file of labels, raw or gzip.

    Args:
      path: the file.

    Returns:
      int32 (N,), each in 0..9.

    Raises:
      JaxperfError: as for `read_images`, or a label is not in 0..9.
    """
    labels = _read_body(path, _LABELS_MAGIC).astype(np.int32)
    check_labels(labels, str(path))
    return labels


def read_pair(images: Traversable, labels: Traversable) -> tuple[Images, Labels]:
    """Read images uint8 (N, 28, 28, 1) and their labels int32 (N,).

    Raises:
      JaxperfError: as for `read_images` and `read_labels`, or the two counts differ.
    """
    y = read_labels(labels)
    x = read_images(images)
    if len(x) != len(y):
        raise JaxperfError(
            f"{images} holds {len(x)} images but {labels} holds {len(y)} labels; "
            "take both files from one source"
        )
    return x, y


def check_labels(labels: Labels, name: str) -> None:
    """Raise a JaxperfError that names the first of `labels` (N,) that is not in 0..9."""
    wrong = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if wrong.size:
        first = int(wrong[0])
        raise JaxperfError(
            f"{name}: label {int(labels[first])} at index {first} is not in 0..{CLASSES - 1}; "
            "this is not Fashion-MNIST or the file is damaged, fetch it again"
        )


def _read_body(path: Traversable, magic: int) -> npt.NDArray[np.uint8]:
    """Return the bytes after the header, exactly as many as it announces."""
    data, header = _read(path), 16 if magic == _IMAGES_MAGIC else 8
    count = _check_header(path, _unpacked(path, data, header)[0], magic)
    size = count * (SIDE * SIDE if magic == _IMAGES_MAGIC else 1)
    contents, ended, rest = _unpacked(path, data, header + size + 1)
    if len(contents) < header + size:
        raise _truncated(path, f"{len(contents) - header} of the {size} bytes that its header announces")
    if len(contents) > header + size or rest:
        raise JaxperfError(
            f"{path}: trailing bytes after the {size} that its header announces; fetch it again"
        )
    if not ended:
        raise _truncated(path, "no gzip trailer")
    return np.frombuffer(contents, np.uint8, size, header).copy()


def _read(path: Traversable) -> bytes:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, io.SEEK_END)
            if size > _LARGEST:
                raise JaxperfError(
                    f"{path}: {size:,} bytes, more than Fashion-MNIST's files can have; give its own files"
                )
            stream.seek(0)
            return stream.read(size)
    except OSError as error:
        reason = error.strerror or error
        raise JaxperfError(
            f"{path}: cannot be read ({reason}); check the path and its permissions"
        ) from error


def _unpacked(path: Traversable, data: bytes, most: int) -> tuple[bytes, bool, bytes]:
    """Return up to `most` bytes of a raw file or gzip stream, whether it is complete, and what follows it.

    `gzip.GzipFile` would go on to the next stream in the file, and skip zeros in between.
    """
    if data[:2] != _GZIP_MAGIC:
        if len(data) >= 2 and path.name.endswith(".gz"):
            raise JaxperfError(
                f"{path}: not gzip, it begins with 0x{data[:2].hex()} instead of 0x{_GZIP_MAGIC.hex()}; "
                "fetch it again, or drop .gz from the name if it is unpacked"
            )
        return data[:most], True, data[most:]
    inflate = zlib.decompressobj(wbits=31)
    try:
        contents = inflate.decompress(data, most)
    except zlib.error as error:
        raise JaxperfError(f"{path}: damaged gzip data ({error}); fetch the file again") from error
    return contents, inflate.eof, inflate.unused_data


def _check_header(path: Traversable, header: bytes, magic: int) -> int:
    """Return the number of examples, once every other field is what Fashion-MNIST has."""
    kind = _KINDS[magic]
    if len(header) < 8:
        raise _truncated(path, f"{len(header)} bytes, not even a header")
    file_magic, count = struct.unpack(">II", header[:8])
    if file_magic != magic:
        raise _wrong_magic(path, file_magic, magic)
    if magic == _IMAGES_MAGIC:
        if len(header) < 16:
            raise _truncated(path, f"{len(header)} of a header's 16 bytes")
        rows, columns = struct.unpack(">II", header[8:])
        if (rows, columns) != (SIDE, SIDE):
            raise JaxperfError(
                f"{path}: images of {rows} x {columns}, Fashion-MNIST has {SIDE} x {SIDE}; give its own files"
            )
    if not 1 <= count <= MAX_COUNT:
        raise JaxperfError(
            f"{path}: header announces {count} {kind}, accepted are 1 to {MAX_COUNT}; fetch the file again"
        )
    return int(count)


def _wrong_magic(path: Traversable, file_magic: int, magic: int) -> JaxperfError:
    """Say whether the file is not IDX at all, of the other kind, or of another type or rank."""
    wanted = f"{_KINDS[magic]} have 0x{magic:08x}"
    if file_magic in _KINDS:
        return JaxperfError(
            f"{path}: holds {_KINDS[file_magic]} (0x{file_magic:08x}), {wanted}; are two files swapped?"
        )
    if file_magic >> 8 == 0x08:
        return JaxperfError(
            f"{path}: IDX of rank {file_magic & 0xFF} (0x{file_magic:08x}), {wanted}; give the right file"
        )
    return JaxperfError(
        f"{path}: not such an IDX file, it begins with 0x{file_magic:08x}, {wanted}; fetch it again"
    )


def _truncated(path: Traversable, holds: str) -> JaxperfError:
    return JaxperfError(f"{path}: truncated, it holds {holds}; fetch the file again")
