import gzip
import os
import tracemalloc
import zlib

import numpy as np
import pytest
from idx_files import generated, images_file, labels_file, packed, write_folder

from jaxperf import data
from jaxperf.data import read_folder, read_images, read_labels
from jaxperf.errors import JaxperfError

ONE = bytes(range(196)) * 4  # the pixels of one image


def write(tmp_path, data, name="images.gz"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def refusal(call, *args):
    with pytest.raises(JaxperfError) as caught:
        call(*args)
    text = str(caught.value)
    # One line: the file, the fact, the way out
    assert "\n" not in text and str(args[0]) in text and ";" in text
    return text


def test_images_and_labels_come_back_as_they_were_written(tmp_path):
    images = generated().train_images
    for name in ("raw", "packed.gz"):
        got = read_images(write(tmp_path, images_file(len(images), body=images.tobytes()), name))
        assert got.dtype == np.uint8 and got.shape == (40, 28, 28, 1)
        np.testing.assert_array_equal(got, images)
        labels = read_labels(write(tmp_path, labels_file(10, body=bytes(range(10))), name))
        assert labels.dtype == np.int32
        assert labels.tolist() == list(range(10))


def test_output_that_the_inflater_still_holds_is_not_lost(tmp_path):
    # Long runs of one byte leave output inside the inflater after the last input byte is taken.
    body = bytes(784 * 300)
    path = tmp_path / "images.gz"
    for level in (0, 1, 9):
        path.write_bytes(gzip.compress(images_file(300, body=body), compresslevel=level))
        assert read_images(path).tobytes() == body


def test_every_truncation_is_refused(tmp_path):
    for name in ("images", "images.gz"):
        path = write(tmp_path, images_file(2, body=ONE + ONE), name)
        whole = path.read_bytes()
        for length in [0, 1, 2, 7, 8, 12, 15, 16, 17, len(whole) // 2, len(whole) - 9, len(whole) - 1]:
            path.write_bytes(whole[:length])
            refusal(read_images, path)


@pytest.mark.parametrize(
    ("read", "contents", "says"),
    [
        (read_images, images_file(2, body=ONE), "not the 1584 bytes that its header announces"),
        (read_images, images_file(1, body=ONE + b"x"), "not the 800 bytes"),
        *((read_images, images_file(count, body=ONE), f"and {count} x 28 x 28")
          for count in (0, 100_001, 0xFFFFFFFF)),
        *((read_labels, labels_file(count, body=b"1"), f"and {count})")
          for count in (0, 100_001, 0xFFFFFFFF)),
        *((read_images, images_file(1, rows=rows, columns=columns, body=ONE), f"{rows} x {columns}")
          for rows, columns in ((28, 27), (32, 32), (784, 1))),
        *((read_images, images_file(1, magic=magic, body=ONE), f"a header of 0x{magic:08x}")
          for magic in (0x0804, 0x0D03, 0x10803, 0x3C68746D)),
        (read_images, labels_file(9, body=bytes(9)), "a header of 0x00000801"),  # the files are swapped
        (read_labels, images_file(1, body=ONE), "a header of 0x00000803"),
        (read_images, b"<html>not found</html>", "a header of 0x3c68746d"),
        (read_labels, labels_file(3, body=b"\1\12\2"), "label 10 at index 1"),
    ],
)  # fmt: skip
def test_what_is_not_such_a_file_is_refused(read, contents, says, tmp_path):
    for name in ("raw", "packed.gz"):
        assert says in refusal(read, write(tmp_path, contents, name))


def test_bytes_after_the_gzip_stream_and_a_flipped_bit_are_refused(tmp_path):
    path = write(tmp_path, images_file(1, body=ONE))
    whole = path.read_bytes()
    for extra in (b"x", gzip.compress(b"more"), bytes(1 << 17)):
        path.write_bytes(whole + extra)
        assert "not the 800 bytes" in refusal(read_images, path)
    path.write_bytes(whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:])  # the stream's own checksum
    assert "damaged gzip data" in refusal(read_images, path)


def test_a_gzip_bomb_is_decompressed_to_the_announced_size_and_one_byte(tmp_path, monkeypatch):
    produced = 0
    real = zlib.decompressobj

    class Counting:
        def __init__(self, **options):
            self.inner = real(**options)

        def decompress(self, data, limit):
            nonlocal produced
            piece = self.inner.decompress(data, limit)
            produced += len(piece)
            return piece

        def __getattr__(self, name):
            return getattr(self.inner, name)

    path = write(tmp_path, images_file(1, body=bytes(4 << 20)))
    monkeypatch.setattr(data.zlib, "decompressobj", Counting)
    assert "not the 800 bytes" in refusal(read_images, path)
    assert produced == 16 + (16 + 784 + 1)  # the header alone, then all


def test_a_hostile_count_costs_no_memory(tmp_path):
    path = write(tmp_path, images_file(0xFFFFFFFF, body=ONE), "images")
    tracemalloc.start()
    try:
        refusal(read_images, path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    assert "cannot be read" in refusal(read_images, tmp_path / "absent.gz")
    assert "cannot be read" in refusal(read_images, tmp_path)
    if os.geteuid() != 0:  # root reads everything
        path = write(tmp_path, images_file(1, body=ONE))
        path.chmod(0)
        assert "cannot be read" in refusal(read_images, path)


def test_counts_that_differ_are_refused(tmp_path):
    write_folder(tmp_path, packed(generated()))
    write(tmp_path, labels_file(2, body=b"\1\2"), "train-labels-idx1-ubyte.gz")
    text = refusal(read_folder, tmp_path)
    assert "train-labels-idx1-ubyte.gz" in text and "2 labels for 40 images" in text
