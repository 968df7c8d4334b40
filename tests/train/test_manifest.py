"""Manifests: what was saved comes back as it was, and no damage to any file goes unnoticed."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxperf.errors import JaxperfError
from jaxperf.train import manifest
from jaxperf.train.manifest import LARGEST, NAME, About, DamagedError, parse, read_verified, write_manifest

ABOUT = About(
    step=7,
    arrays={"['W']": "float32[4, 3]"},
    training={"seed": 0, "optimizer": "EmptyState", "batch size": 4},
    surroundings={"jax": "0.10.2"},
    progress={"update": 3, "losses": [0.1, 0.25, 1e-30]},
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    (tmp_path / "state" / "d").mkdir(parents=True)
    for i, name in enumerate(("state/a", "state/d/b", "c")):
        (tmp_path / name).write_bytes(bytes(range(50 * (i + 1))))
    (tmp_path / "empty").touch()
    write_manifest(tmp_path, ABOUT)
    return tmp_path


def test_what_was_saved_comes_back(saved: Path) -> None:
    assert read_verified(saved) == ABOUT
    (saved / NAME).write_text(json.dumps(json.loads((saved / NAME).read_text())))
    assert read_verified(saved) == ABOUT  # in another layout


def test_any_flipped_bit_of_any_file_is_found(saved: Path) -> None:
    rng = random.Random(0)
    for path in (saved / "c", saved / "state/a", saved / "state/d/b"):
        before = path.read_bytes()
        for _ in range(20):
            flipped = bytearray(before)
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            path.write_bytes(flipped)
            with pytest.raises(DamagedError, match=f"SHA-256 of {path.relative_to(saved)} differs"):
                read_verified(saved)
        path.write_bytes(before)
    read_verified(saved)


def link(path: Path) -> None:
    path.with_suffix(".real").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(path.with_suffix(".real"))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda path: os.truncate(path, 20), "state/a has 20 bytes, not 50"),
    "longer": (lambda path: path.write_bytes(bytes(51)), "state/a has 51 bytes, not 50"),
    "missing": (lambda path: path.unlink(), "state/a is missing"),
    "another file": (lambda path: path.with_name("b").touch(), "state/b is not in its manifest"),
    "a link": (link, "state/a is not a file"),
    "a pipe": (pipe, "state/a is not a file"),
    "a folder": (unreadable, "state/a is missing"),
    "no manifest": (lambda path: path.parents[1].joinpath(NAME).unlink(), f"cannot read {NAME}: No such"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(fault: str, saved: Path) -> None:
    damage, reason = FAULTS[fault]
    damage(saved / "state" / "a")
    with pytest.raises(DamagedError, match=f"^{reason}[^\n]*$"):
        read_verified(saved)


def rewritten(saved: Path, **changes: object) -> None:
    """The manifest with other entries and a digest that fits: one that lies."""
    body = json.loads((saved / NAME).read_text()) | changes
    del body["sha256"]
    (saved / NAME).write_text(json.dumps({**body, "sha256": manifest._digest(body)}))


def test_a_manifest_that_lies_is_found_by_the_files(saved: Path) -> None:
    files = json.loads((saved / NAME).read_text())["files"]
    for name, row, reason in (
        ("c", [150, "0" * 64], "the SHA-256 of c differs"),
        ("c", [151, files["c"][1]], "c has 150 bytes, not 151"),
        ("../../etc/passwd", [1, "0" * 64], "../../etc/passwd is missing"),
        ("/etc/passwd", [1, "0" * 64], "/etc/passwd is missing"),
        ("c", [150], "manifest.json lacks files"),
        ("c", {"bytes": 150}, "manifest.json lacks files"),
    ):
        rewritten(saved, files={**files, name: row})
        with pytest.raises(DamagedError, match=reason):
            read_verified(saved)
    rewritten(saved, files=files, step=True, progress=[1])
    with pytest.raises(DamagedError, match="lacks step, progress"):
        read_verified(saved)
    for version, fix in ((2, "start again in another folder"), (4, "upgrade jaxperf"), (10**400, "upgrade")):
        rewritten(saved, files=files, step=7, progress={}, version=version)
        with pytest.raises(JaxperfError, match=f"version {str(version)[:20]}, this jaxperf reads 3; {fix}"):
            read_verified(saved)


def test_a_manifest_of_any_size_or_depth_is_refused_before_it_costs_memory(saved: Path) -> None:
    with (saved / NAME).open("wb") as f:
        f.truncate(LARGEST + 1)
    with pytest.raises(DamagedError, match=r"manifest\.json is not a file of at most"):
        read_verified(saved)
    for text in ("[" * 100_000, '{"format": "jaxperf-checkpoint", "a": ' + "[" * 900 + "]" * 900 + "}"):
        with pytest.raises(DamagedError):
            parse(text.encode())
    deep = saved.joinpath(*"abcdefghij")
    deep.mkdir(parents=True)
    (saved / NAME).unlink()
    with pytest.raises(DamagedError, match="is not a file"):
        write_manifest(saved, ABOUT)


def test_none_of_10_000_mutated_manifests_is_believed(saved: Path) -> None:
    before, rng = (saved / NAME).read_bytes(), random.Random(1)
    expected = parse(before)
    for _ in range(10_000):
        data = bytearray(before)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) or 1)
            match rng.randrange(4):
                case 0:
                    data[at : at + 1] = bytes([rng.randrange(256)])
                case 1:
                    del data[at : at + rng.randint(1, 40)]
                case 2:
                    data[at:at] = rng.choice([b"-", b"1e999", b'"', b"{", b"NaN", b"\xff", b" ", b"\\ud800"])
                case 3:
                    data = data[:at] or data
        try:
            assert parse(bytes(data)) == expected  # blanks may come and go
        except DamagedError as e:
            assert "\n" not in str(e)
