"""IDX files, the format of MNIST and Fashion-MNIST, read with strict limits.

A header says what follows (a magic number with type and rank, then one 32-bit size per axis), so a damaged or
hostile file can be rejected before it costs memory. The header is read first and alone, every field must be
what Fashion-MNIST has, and the count is capped. From a gzip stream exactly the announced bytes are read, plus
one that must not exist.

Letters: N examples, 28 x 28 pixels, 1 channel.
"""

from __future__ import annotations

import struct
import zlib
from importlib.resources.abc import Traversable
from typing import IO, NamedTuple

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
_CHUNK_BYTES = 1 << 16

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
    body = _read_body(path, _IMAGES_MAGIC)
    return np.frombuffer(body, np.uint8).reshape(-1, SIDE, SIDE, 1)


def read_labels(path: Traversable) -> Labels:
    """Read an IDX file of labels, raw or gzip.

    Args:
      path: the file.

    Returns:
      int32 (N,), each in 0..9.

    Raises:
      JaxperfError: as for `read_images`, or a label is not in 0..9.
    """
    labels = np.frombuffer(_read_body(path, _LABELS_MAGIC), np.uint8).astype(np.int32)
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


def _read_body(path: Traversable, magic: int) -> bytearray:
    """Return the bytes after the header, exactly as many as it announces."""
    try:
        with path.open("rb") as stream:
            source = _Source(stream, path)
            count = _read_header(source, magic)
            size = count * (SIDE * SIDE if magic == _IMAGES_MAGIC else 1)
            body = source.take(size)
            if len(body) < size:
                raise _truncated(path, f"{len(body)} of the {size} bytes that its header announces")
            source.finish(size)
            return body
    except OSError as error:
        reason = error.strerror or error
        raise JaxperfError(
            f"{path}: cannot be read ({reason}); check the path and its permissions"
        ) from error
    except zlib.error as error:
        raise JaxperfError(f"{path}: damaged gzip data ({error}); fetch the file again") from error


def _read_header(source: _Source, magic: int) -> int:
    """Return the number of examples, once every other field is what Fashion-MNIST has."""
    path, kind = source.path, _KINDS[magic]
    start = source.take(8)
    if len(start) < 8:
        raise _truncated(path, f"{len(start)} bytes, not even a header")
    file_magic, count = struct.unpack(">II", start)
    if file_magic != magic:
        raise _wrong_magic(path, file_magic, magic)
    if magic == _IMAGES_MAGIC:
        axes = source.take(8)
        if len(axes) < 8:
            raise _truncated(path, f"{8 + len(axes)} of a header's 16 bytes")
        rows, columns = struct.unpack(">II", axes)
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


class _Source:
    """Return the bytes of a raw or gzip stream on demand; decompresses no byte that was not requested.

    `gzip.GzipFile` would decompress ahead, stream after stream, to the end of the file.
    """

    def __init__(self, stream: IO[bytes], path: Traversable) -> None:
        self.path = path
        self._stream = stream
        self._pending = stream.read(len(_GZIP_MAGIC))
        self._inflate = zlib.decompressobj(wbits=31) if self._pending == _GZIP_MAGIC else None
        if len(self._pending) == 2 and self._inflate is None and path.name.endswith(".gz"):
            raise JaxperfError(
                f"{path}: not gzip, it begins with 0x{self._pending.hex()} instead of 0x{_GZIP_MAGIC.hex()}; "
                "fetch it again, or drop .gz from the name if it is unpacked"
            )

    def take(self, size: int) -> bytearray:
        """Return at most `size` bytes; fewer only if the stream ends."""
        out = bytearray()
        while len(out) < size and not (self._inflate and self._inflate.eof):
            wanted = size - len(out)
            data = self._pending or self._stream.read(_CHUNK_BYTES)
            if self._inflate is None:
                piece, self._pending = data[:wanted], data[wanted:]
            else:
                # With no input left, the inflater may still hold output, so it is called once more.
                piece = self._inflate.decompress(data, wanted)
                self._pending = self._inflate.unconsumed_tail
            out += piece
            if not data and not piece:
                break
        return out

    def finish(self, size: int) -> None:
        """Check that nothing follows, and that a gzip stream is complete (including its own checksum)."""
        extra = self.take(1)
        if self._inflate is not None:
            if not extra and not self._inflate.eof:
                raise _truncated(self.path, "no gzip trailer")
            extra += self._inflate.unused_data[:1]
        if extra or self._pending or self._stream.read(1):
            raise JaxperfError(
                f"{self.path}: trailing bytes after the {size} that its header announces; fetch it again"
            )
