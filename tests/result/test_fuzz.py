"""10,000 hostile inputs for each reader: refused in one line, or read and shown.

What is read is shown by every command. `make test` tries 50 of each. A failure names its seed:
`FUZZ_SEEDS=12 pytest tests/result/test_fuzz.py` repeats it.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import chex
import numpy as np
import pytest
from hostile import damaged, distorted, patience, peak_bytes
from idx_files import generated, images_file, labels_file
from report_results import all_results
from test_store import FULL
from trainings import NAME, InterruptedTrainingError, at, step_of, steps_in, trained

from jaxperf.cli import command_line
from jaxperf.data.idx import read_images, read_labels
from jaxperf.errors import JaxperfError
from jaxperf.process import USER_MISTAKE, ended
from jaxperf.result.machine import versions
from jaxperf.result.store import to_json
from jaxperf.train import CheckpointFolder, Policy
from jaxperf.train.manifest import DamagedError, _digest, read_verified, write_manifest

STEP = step_of()
QUICK, ALL = 50, 10_000
LONGEST_S = 10  # of one input, in processor time; the slowest of 10,000 took 1.5
MOST_BYTES = 600 << 20  # for all inputs of a test together
CHUNKS = [pytest.param(0, QUICK, id="quick")] + [
    pytest.param(a, a + ALL // 4, id=str(a), marks=pytest.mark.thorough) for a in range(0, ALL, ALL // 4)
]


def seeds(first: int, last: int) -> Iterable[int]:
    only = os.environ.get("FUZZ_SEEDS")
    return map(int, only.split(",")) if only else range(first, last)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    before = peak_bytes()
    yield
    assert peak_bytes() - before < MOST_BYTES


# --- images and labels


@pytest.mark.parametrize("read", [read_images, read_labels])
@pytest.mark.parametrize("first, last", CHUNKS)
def test_a_hostile_idx_file_is_read_or_refused_in_one_line(
    first: int, last: int, read: Callable[[Path], Any], tmp_path: Path
) -> None:
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
def pool() -> tuple[dict[str, Any], ...]:
    """Results as JSON, with every kind of block in them."""
    return tuple(json.loads(to_json(r)) for r in (*all_results(), FULL))


def small(rng: random.Random) -> dict[str, Any]:
    """A result of a few blocks."""
    body = dict(rng.choice(pool()))
    body["blocks"] = rng.sample(body["blocks"], k=rng.randrange(1, 4))
    return {k: v for k, v in body.items() if k not in ("measurements", "claims", "facts", "failed")}


@pytest.mark.parametrize("first, last", CHUNKS)
def test_a_hostile_result_is_refused_in_one_line_or_shown_by_every_command(
    first: int, last: int, tmp_path: Path
) -> None:
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


def shown(path: Path, other: Path) -> bool:
    """Whether it is read; then all commands must show it and leave the terminal alone."""
    status, out, err = outcome_of(lambda: command_line.show_report(command_line.Report(path)))
    if status:
        assert (status, out, err.count("\n")) == (USER_MISTAKE, "", 2), err  # left out, so nothing is left
        assert err.startswith("left out: ") and len(err) < 1000
        return False
    commands: list[Callable[[], int]] = [
        lambda a=a, b=b: command_line.show_comparison(command_line.Compare(str(a), str(b)))
        for a, b in ((path, other), (other, path))
    ]
    for command in commands:
        status, more, err = outcome_of(command)
        out += more
        if status == USER_MISTAKE:
            assert err.startswith("error: ") and err.count("\n") == 1 and len(err) < 1000, err
        else:
            assert err == "", err
    assert not set("\x1b\x07\x9b\u202e") & set(out)
    return True


# --- manifests of checkpoints


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that was stopped in its second epoch and left one checkpoint."""
    folder = tmp_path_factory.mktemp("training")
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, folder, before=at(7), policy=Policy(every_steps=6, keep=1))
    assert steps_in(folder) == ["step-00000006"]
    return folder


@pytest.fixture
def checkpoint(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint in the middle of a training's second epoch, of which there is no other."""
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    return tmp_path / NAME / "step-00000006"


@pytest.mark.parametrize("first, last", CHUNKS)
def test_a_hostile_manifest_whose_digest_fits_is_refused_in_one_line_or_goes_on(
    first: int, last: int, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxperf.train.run.versions", functools.cache(versions))  # half of all the time
    manifest = checkpoint / "manifest.json"
    whole = json.loads(manifest.read_text())
    went_on = 0
    with bounded():
        for seed in seeds(first, last):
            rng = random.Random(seed)
            keys_to_keep = rng.choice((set(), {"files", "arrays"}))  # which are most of it
            part = {name: value for name, value in whole.items() if name not in keys_to_keep}
            manifest.write_bytes(signed(distorted(part, rng), {name: whole[name] for name in keys_to_keep}))
            try:
                with patience(LONGEST_S):
                    went_on += goes_on(checkpoint.parents[1])
            except BaseException as e:
                raise AssertionError(f"seed {seed}") from e
            if not checkpoint.exists():
                checkpoint.with_suffix(".damaged").rename(checkpoint)
    assert went_on > (last - first) // 10 or "FUZZ_SEEDS" in os.environ


def signed(text: str, rest: dict[str, Any]) -> bytes:
    """A manifest that says this and the rest, with the digest that fits."""
    with contextlib.suppress(ValueError, RecursionError, DamagedError):
        body = json.loads(text)
        if isinstance(body, dict):
            body = {**body, **rest}
            body.pop("sha256", None)
            text = json.dumps({**body, "sha256": _digest(body)})
    return text.encode()


@functools.cache
def start() -> Any:
    """The state that a checkpoint's arrays replace: one for all inputs saves a fifth of their time."""
    return STEP.init()


def goes_on(folder: Path) -> bool:
    """Whether a training goes on from there; it must say why not, and leave the terminal alone."""

    def resume() -> int:
        with contextlib.suppress(InterruptedTrainingError):
            trained(STEP, folder, before=at(2), policy=Policy(every_steps=0), state=start())
        return 0

    status, out, err = outcome_of(resume)
    lines = err.splitlines()
    assert out == "" and all(line.isprintable() and len(line) < 1500 for line in lines), err
    if status:
        assert status == USER_MISTAKE and lines[-1].startswith("error: ") and len(lines) <= 2, err
        return False
    assert lines[0].startswith("going on after step 6 ") and len(lines) <= 2, err
    return True


# --- Orbax's files


# Of what `_drop_late_errors` keeps from a user: writes and reads after the first that failed
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "first, last", [CHUNKS[0], pytest.param(QUICK, 1_000, id="1000", marks=pytest.mark.thorough)]
)
def test_hostile_metadata_of_orbax_under_a_manifest_that_fits_is_damage_or_changes_no_array(
    first: int, last: int, checkpoint: Path
) -> None:
    """In any of its files but those with values, which lie in folders named d."""
    about, like = read_verified(checkpoint), STEP.read(STEP.init())
    whole = {p: p.read_bytes() for p in sorted((checkpoint / "state").rglob("*")) if p.is_file()}
    metadata = [path for path in whole if path.parent.name != "d"]
    expected = restored(checkpoint, like)
    went_on = 0
    with bounded():
        for seed in seeds(first, last):
            rng = random.Random(seed)
            path = rng.choice(metadata)
            path.write_bytes(damaged(whole[path], rng))
            (checkpoint / "manifest.json").unlink()
            write_manifest(checkpoint, about)
            try:
                with patience(LONGEST_S):
                    arrays = restored(checkpoint, like)
                if arrays is not None:
                    went_on += 1
                    chex.assert_trees_all_equal(arrays, expected)
            except BaseException as e:
                raise AssertionError(f"seed {seed}: {path}") from e
            if not checkpoint.exists():
                checkpoint.with_suffix(".damaged").rename(checkpoint)
            path.write_bytes(whole[path])
    assert 0 < went_on < last - first or "FUZZ_SEEDS" in os.environ


def restored(checkpoint: Path, like: Any) -> Any:
    """The arrays that a training would go on from; None where one line says that they are damaged."""
    arrays: list[Any] = []

    def resume() -> int:
        with CheckpointFolder(checkpoint.parents[1], resume=True) as folder:
            arrays.append(folder.of(NAME).load(lambda about: like))
        return 0

    status, out, err = outcome_of(resume)
    lines = err.splitlines()
    assert out == "" and all(line.isprintable() and len(line) < 1500 for line in lines), err
    if status:
        assert status == USER_MISTAKE and " is damaged (" in lines[0] and len(lines) == 2, err
        return None
    assert not lines, err
    return arrays[0][1]


def outcome_of(command: Callable[[], int]) -> tuple[int, str, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = ended(command)
    return status, out.getvalue(), err.getvalue()
