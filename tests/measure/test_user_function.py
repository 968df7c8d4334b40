import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.measure.user_function import Arguments, load_arguments, load_function, user_errors_shown

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
def folder(tmp_path, monkeypatch):
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


def test_a_function_is_found_by_module_by_file_and_inside_a_class():
    assert load_function("own_train:step")(2) == 4
    assert load_function("own_train.py:step")(2) == 4
    assert load_function("sub/own_other.py:step")(2) == 6  # with its folder on the path, as when it is run
    assert load_function("own_train:Net.apply")(2) == 3
    assert load_function("math:sqrt")(4) == 2


def test_a_file_whose_name_another_module_has_is_refused():
    Path("sub", "own_train.py").write_text("def step(x): return x * 4")
    Path("random.py").write_text("def step(x): return x * 5")
    assert load_function("own_train.py:step")(2) == load_function("./own_train.py:step")(2) == 4
    for word in ("sub/own_train.py:step", "random.py:step"):
        with pytest.raises(JaxperfError, match=r"is imported already, from .*; rename one of the two"):
            load_function(word)


def test_what_is_not_there_is_one_line_and_shows_no_traceback(capsys):
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


def test_a_module_that_cannot_be_imported_shows_its_own_traceback(capsys):
    for module, says, line in (
        ("own_raises", "importing own_raises raised ZeroDivisionError: division by zero", "1 / 0"),
        ("own_exits", "raised SystemExit: usage: give a file", "raise SystemExit"),
        ("own_lacks", "raised ModuleNotFoundError: No module named 'no_such", "import no_such_library"),
        ("own_syntax", "raised SyntaxError", ""),
    ):
        with pytest.raises(JaxperfError, match=says):
            load_function(f"{module}:step")
        shown = capsys.readouterr().err
        assert line in shown and "importlib" not in shown


def test_what_a_function_raises_is_shown_from_its_own_first_line_on(capsys):
    fails = load_function("own_train:fails")
    with pytest.raises(JaxperfError, match=r"^fails raised ValueError: wrong$"), user_errors_shown("fails"):
        fails(1)
    shown = capsys.readouterr().err
    assert shown.index("return inner(x)") < shown.index('raise ValueError("wrong')
    with pytest.raises(JaxperfError, match=r"^ours$"), user_errors_shown("fails"):
        raise JaxperfError("ours")
    with pytest.raises(KeyboardInterrupt), user_errors_shown("fails"):
        raise KeyboardInterrupt


def test_arguments_come_from_words_a_setup_or_a_file():
    from_text = load_arguments(["f32[2,3]", "4", "n=i32[2]"], "")
    array, number = from_text.by_position
    assert (array.shape, number, from_text.by_name["n"].dtype) == ((2, 3), 4, jnp.int32)
    two = load_arguments(["f32[8]", "f32[8]"], "").by_position
    assert not np.array_equal(*two)  # each has its own values
    made = load_arguments([], "own_train:pair")
    assert (len(made.by_position), made.by_position[1], made.by_name) == (2, 4, {})
    assert len(load_arguments([], "own_train:single").by_position) == 1
    assert load_arguments([], "") == ((), {})


def test_shapes_take_no_memory_and_are_not_waited_for():
    many = load_arguments(["f32[1000000,1000000]", "n=3"], "", shapes=True)
    assert many == ((jax.ShapeDtypeStruct((1_000_000, 1_000_000), jnp.float32),), {"n": 3})
    assert load_arguments([], "own_train:strange", shapes=True).by_name == {}


def test_mistakes_in_arguments_are_one_line(capsys):
    for specs, setup, says in (
        (["3"], "own_train:pair", "give one of the two"),
        ([], "own_train:pare", "did you mean pair?"),
        ([], "own_train:fails", "raised TypeError: fails\\(\\) missing 1 required"),
        ([], "own_train:strange", "own_train:strange\\(\\) returns what a call cannot be .*'a'"),
    ):
        with pytest.raises(JaxperfError, match=says) as caught:
            load_arguments(specs, setup)
        assert "\n" not in str(caught.value)


def test_copies_are_used_up_and_the_originals_are_not():
    originals = Arguments((jnp.ones(3), 2, "word", jax.random.key(0)), {"y": jnp.zeros(2)})
    copies = originals.fresh()
    assert not copies.used_up
    jax.block_until_ready(jax.jit(lambda x: x + 1, donate_argnums=0)(copies.by_position[0]))
    assert copies.used_up and not originals.used_up
    assert copies.by_position[1:3] == (2, "word")
