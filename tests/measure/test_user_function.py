"""A reader's function is found as Python would find it, and its errors are told as its own."""

from __future__ import annotations

import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.measure.user_function import Arguments, load_arguments, load_function, reader_code

MODULE = """
import jax, jax.numpy as jnp
class Net:
    @staticmethod
    def apply(x): return x + 1
def step(x): return x * 2
def pair(): return jnp.ones(3), 4
def single(): return [jnp.ones(3)]
def strange(): return {"a": object()}
def fails(x):
    return inner(x)
def inner(x):
    raise ValueError("wrong\\nin two lines")
size = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the modules `own_train`, and some that cannot be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "own_train.py").write_text(MODULE)
    (tmp_path / "own_raises.py").write_text("1 / 0")
    (tmp_path / "own_exits.py").write_text("raise SystemExit('usage: give a file')")
    (tmp_path / "own_lacks.py").write_text("import no_such_library")
    (tmp_path / "own_syntax.py").write_text("def f(:")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own_other.py").write_text("from own_beside import step")
    (tmp_path / "sub" / "own_beside.py").write_text("def step(x): return x * 3")
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


def test_a_function_is_found_by_module_by_file_and_inside_a_class() -> None:
    assert load_function("own_train:step")(2) == 4
    assert load_function("own_train.py:step")(2) == 4
    assert load_function("sub/own_other.py:step")(2) == 6  # with its folder on the path, as when it is run
    assert load_function("own_train:Net.apply")(2) == 3
    assert load_function("math:sqrt")(4) == 2


def test_a_file_whose_name_another_module_has_is_refused() -> None:
    Path("sub", "own_train.py").write_text("def step(x): return x * 4")
    Path("random.py").write_text("def step(x): return x * 5")
    assert load_function("own_train.py:step")(2) == load_function("./own_train.py:step")(2) == 4
    for word in ("sub/own_train.py:step", "random.py:step"):
        with pytest.raises(JaxperfError, match=r"is imported already, from .*; rename one of the two"):
            load_function(word)


def test_what_is_not_there_is_one_line_and_shows_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    mistakes = {
        "own_train": "names no function; give MODULE:FUNCTION",
        "own_train:": "names no function",
        ":step": "names no function",
        "own_trian:step": "no module 'own_trian' in",
        "own_train.sub:step": "no module 'own_train.sub'",
        "nowhere.py:step": "no file nowhere.py",
        "own_train:stp": "did you mean step?",
        "own_train:Net.aply": "did you mean apply?",
        "own_train:size": "is not a function but int",
    }
    for word, says in mistakes.items():
        with pytest.raises(JaxperfError) as caught:
            load_function(word)
        assert says in str(caught.value) and "\n" not in str(caught.value), word
    assert capsys.readouterr().err == ""


def test_a_module_that_cannot_be_imported_shows_its_own_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for module, says, line in (
        ("own_raises", "importing own_raises raised ZeroDivisionError: division by zero", "1 / 0"),
        ("own_exits", "raised SystemExit: usage: give a file", "raise SystemExit"),
        (
            "own_lacks",
            "raised ModuleNotFoundError: No module named 'no_such_library'",
            "import no_such_library",
        ),
        ("own_syntax", "raised SyntaxError", ""),
    ):
        with pytest.raises(JaxperfError, match=says):
            load_function(f"{module}:step")
        shown = capsys.readouterr().err
        assert line in shown and "importlib" not in shown


def test_what_a_function_raises_is_shown_from_its_own_first_line_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fails = load_function("own_train:fails")
    with pytest.raises(JaxperfError, match=r"^fails raised ValueError: wrong$"), reader_code("fails"):
        fails(1)
    shown = capsys.readouterr().err
    assert shown.index("return inner(x)") < shown.index('raise ValueError("wrong')
    with pytest.raises(JaxperfError, match=r"^ours$"), reader_code("fails"):
        raise JaxperfError("ours")
    with pytest.raises(KeyboardInterrupt), reader_code("fails"):
        raise KeyboardInterrupt


def test_arguments_come_from_words_a_setup_or_a_file() -> None:
    from_text = load_arguments(["f32[2,3]", "4", "n=i32[2]"], "", None)
    assert (from_text.by_position[0].shape, from_text.by_position[1], from_text.by_name["n"].dtype) == (
        (2, 3),
        4,
        jnp.int32,
    )
    assert not np.array_equal(
        *load_arguments(["f32[8]", "f32[8]"], "", None).by_position
    )  # each has its own values
    made = load_arguments([], "own_train:pair", None)
    assert (len(made.by_position), made.by_position[1], made.by_name) == (2, 4, {})
    assert len(load_arguments([], "own_train:single", None).by_position) == 1
    assert load_arguments([], "", None) == ((), {})


def test_a_file_of_arrays_gives_positions_and_names(tmp_path: Path) -> None:
    x, y = np.arange(6.0, dtype="f").reshape(2, 3), np.arange(3)
    np.savez(tmp_path / "a.npz", x, y, scale=y)
    from_file = load_arguments([], "", tmp_path / "a.npz")
    np.testing.assert_array_equal(from_file.by_position[0], x)
    np.testing.assert_array_equal(from_file.by_position[1], y)
    np.testing.assert_array_equal(from_file.by_name["scale"], y)


def npz_of_header(path: Path, shape: str) -> None:
    """Write an .npz file with the header of an array of this shape, without its values."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("arr_0.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)


def with_zip_field(content: bytes, offset: int, value: int) -> bytes:
    """Return a zip file of one member with another two-byte field in both of its headers.

    Args:
      content: of the file.
      offset: of the field in the member's own header; in the directory's, it is two bytes further on.
      value: of the field.
    """
    changed = bytearray(content)
    for at in (offset, content.index(b"PK\x01\x02") + offset + 2):
        changed[at : at + 2] = struct.pack("<H", value)
    return bytes(changed)


def test_damaged_files_of_arrays_are_one_line(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "whole.npz", np.arange(1000))
    whole = (tmp_path / "whole.npz").read_bytes()
    at = 30 + sum(struct.unpack("<HH", whole[26:30]))  # where the compressed values begin
    (tmp_path / "flipped.npz").write_bytes(whole[:at] + b"\xff" * 8 + whole[at + 8 :])
    (tmp_path / "encrypted.npz").write_bytes(with_zip_field(whole, 6, 1))
    (tmp_path / "unknown_compression.npz").write_bytes(with_zip_field(whole, 8, 77))
    np.savez(tmp_path / "text.npz", np.array(["text"]))
    npz_of_header(tmp_path / "no_number.npz", f"({10**30},)")
    npz_of_header(tmp_path / "large.npz", f"({10**15},)")
    damaged = ("flipped", "encrypted", "unknown_compression", "text", "no_number")
    for name, says in {
        **dict.fromkeys(damaged, "is not an .npz file of plain arrays; write it with np.savez"),
        "large": "does not fit in memory; write fewer or smaller arrays",
    }.items():
        with pytest.raises(JaxperfError) as caught:
            load_arguments([], "", Path(f"{name}.npz"))
        assert str(caught.value) == f"{name}.npz {says}"


def test_mistakes_in_arguments_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "one.npy", np.ones(3))
    np.savez(tmp_path / "object.npz", np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("text")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04cut")
    mistakes: list[tuple[list[str], str, str, str]] = [
        (["3"], "own_train:pair", "", "give one of the three"),
        ([], "own_train:pare", "", "did you mean pair?"),
        ([], "own_train:fails", "", "raised TypeError: fails\\(\\) missing 1 required"),
        ([], "own_train:strange", "", "own_train:strange\\(\\) returns what a call cannot be .*'a'"),
        ([], "", "none.npz", "cannot read none.npz"),
        ([], "", "sub", "cannot read sub"),
        *(([], "", f, f"{f} is not an .npz file") for f in ("one.npy", "object.npz", "text.npz", "cut.npz")),
    ]
    for specs, setup, npz, says in mistakes:
        with pytest.raises(JaxperfError, match=says) as caught:
            load_arguments(specs, setup, Path(npz) if npz else None)
        assert "\n" not in str(caught.value)


def test_copies_are_used_up_and_the_originals_are_not() -> None:
    originals = Arguments((jnp.ones(3), 2, "word", jax.random.key(0)), {"y": jnp.zeros(2)})
    copies = originals.fresh()
    assert not copies.used_up
    jax.block_until_ready(jax.jit(lambda x: x + 1, donate_argnums=0)(copies.by_position[0]))
    assert copies.used_up and not originals.used_up
    assert copies.by_position[1:3] == (2, "word")
