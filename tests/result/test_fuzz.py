"""10,000 hostile inputs for each reader: refused in one line, or read and shown.

What is read is shown by every command. `make test` tries 50 of each. A failure names its seed:
`FUZZ_SEEDS=12 pytest tests/result/test_fuzz.py` repeats it.
"""

import contextlib
import functools
import gzip
import io
import json
import os
import random

import numpy as np
import pytest
from hostile import damaged, distorted, patience, peak_bytes
from idx_files import generated, images_file, labels_file
from report_results import all_results
from test_store import FULL

from jaxperf import cli
from jaxperf.data import read_images, read_labels
from jaxperf.errors import JaxperfError
from jaxperf.process import USER_MISTAKE
from jaxperf.result.store import to_json

QUICK, ALL = 50, 10_000
LONGEST_S = 60  # of one input, in processor time; the slowest of 10,000 took 1.5
MOST_BYTES = 600 << 20  # for all inputs of a test together
CHUNKS = [pytest.param(0, QUICK, id="quick")] + [
    pytest.param(a, a + ALL // 4, id=str(a), marks=pytest.mark.thorough) for a in range(0, ALL, ALL // 4)
]


def seeds(first, last):
    only = os.environ.get("FUZZ_SEEDS")
    return map(int, only.split(",")) if only else range(first, last)


@contextlib.contextmanager
def bounded():
    before = peak_bytes()
    yield
    assert peak_bytes() - before < MOST_BYTES


# --- images and labels


@pytest.mark.parametrize("read", [read_images, read_labels])
@pytest.mark.parametrize("first, last", CHUNKS)
def test_a_hostile_idx_file_is_read_or_refused_in_one_line(first, last, read, tmp_path):
    images = generated(3, 1).train_images
    files = images_file(3, body=images.tobytes()), labels_file(9, body=bytes(range(9)))
    whole = files[read is read_labels]
    raw, packed = tmp_path / "raw", tmp_path / "packed.gz"
    read_well = 0
    with bounded():
        for seed in seeds(first, last):
            rng = random.Random(seed)
            path = rng.choice((raw, packed))
            if path is raw:
                path.write_bytes(damaged(whole, rng))
            elif rng.random() < 0.5:
                path.write_bytes(gzip.compress(damaged(whole, rng)))
            else:
                path.write_bytes(damaged(gzip.compress(whole), rng))
            try:
                with patience(LONGEST_S):
                    arrays = read(path)
            except JaxperfError as e:
                assert str(e).startswith(f"{path}: ") and "\n" not in str(e) and len(str(e)) < 400, seed
            except BaseException as e:
                raise AssertionError(f"seed {seed}") from e
            else:
                read_well += 1
                assert arrays.dtype == (np.uint8 if read is read_images else np.int32), seed
                assert arrays.shape[1:] == ((28, 28, 1) if read is read_images else ()), seed
                assert read is read_images or {*arrays.tolist()} <= {*range(10)}, seed
    assert read_well > (last - first) // 100 or "FUZZ_SEEDS" in os.environ


# --- results


@functools.cache
def pool():
    return tuple(json.loads(to_json(r)) for r in (*all_results(), FULL))


def small(rng):
    body = dict(rng.choice(pool()))
    body["blocks"] = rng.sample(body["blocks"], k=rng.randrange(1, 4))
    return {k: v for k, v in body.items() if k not in ("measurements", "claims", "facts", "failed")}


@pytest.mark.parametrize("first, last", CHUNKS)
def test_a_hostile_result_is_refused_in_one_line_or_shown_by_every_command(first, last, tmp_path):
    path, other = tmp_path / "fuzz.json", tmp_path / "other.json"
    read_well = 0
    with bounded():
        for seed in seeds(first, last):
            rng = random.Random(seed)
            body = small(rng)
            other.write_text(json.dumps(body))
            text = distorted(body, rng)
            path.write_bytes(damaged(text.encode(), rng) if seed % 8 == 0 else text.encode())
            try:
                with patience(LONGEST_S):
                    read_well += shown(path, other)
            except BaseException as e:
                raise AssertionError(f"seed {seed}") from e
    assert read_well > (last - first) // 4 or "FUZZ_SEEDS" in os.environ


def shown(path, other):
    """Whether it is read; then all commands must show it and leave the terminal alone."""
    status, out, err = outcome_of("report", path)
    if status:
        assert (status, out, err.count("\n")) == (USER_MISTAKE, "", 1), err
        assert err.startswith("error: ") and len(err) < 1000
        return False
    for sides in ((path, other), (other, path)):
        status, more, err = outcome_of("compare", *sides)
        out += more
        if status == USER_MISTAKE:
            assert err.startswith("error: ") and err.count("\n") == 1 and len(err) < 1000, err
        else:
            assert err == "", err
    assert not set("\x1b\x07\x9b\u202e") & set(out)
    return True


def outcome_of(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = cli.main([str(word) for word in words])
    return status, out.getvalue(), err.getvalue()
