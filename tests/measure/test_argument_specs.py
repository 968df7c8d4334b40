"""Arguments as text: what words stand for, and a wrong word is one line."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.measure.argument_specs import (
    DTYPES,
    Array,
    RandomKey,
    make,
    parse,
    parse_all,
)


def test_arrays_keys_and_python_values_are_what_their_words_stand_for() -> None:
    rng = random.Random(0)
    for _ in range(200):
        shape = tuple(rng.randrange(0, 10 ** rng.randrange(1, 7)) for _ in range(rng.randrange(5)))
        array, seed = Array(rng.choice(list(DTYPES.values())), shape), rng.randrange(10**9)
        assert parse(str(array)) == parse(f"  {array} ") == array
        assert parse(f"key({seed})") == RandomKey(seed)
    plain = [-3, 0.5, True, None, "same", "f32[3]", "key", ""]
    for value in (*plain, tuple(plain), {"a": [1, 2.5]}):
        assert parse(repr(value)) == value


def test_long_names_and_blanks_mean_the_same_as_short_ones() -> None:
    assert (
        parse("float32[ 256, 28,28 ,1 ]") == parse("f32[256,28,28,1]") == Array("float32", (256, 28, 28, 1))
    )
    assert parse("bfloat16[]") == parse("bf16[ ]") == Array("bfloat16", ())
    assert parse("key") == parse("key(0)") == RandomKey(0)


def test_specs_have_positions_and_names() -> None:
    by_position, by_name = parse_all(["f32[2]", "-3", "n=4", "mode='a=b'", "x=i32[2,2]"])
    assert by_position == [Array("float32", (2,)), -3]
    assert by_name == {"n": 4, "mode": "a=b", "x": Array("int32", (2, 2))}
    assert parse_all([]) == ([], {})


def test_an_array_has_its_shape_and_dtype_and_the_same_values_each_time() -> None:
    for short, dtype in DTYPES.items():
        if dtype in ("int64", "uint64", "float64", "complex128"):
            continue
        array = make(parse(f"{short}[3,0,2]"), seed=1)
        assert (array.shape, array.dtype) == ((3, 0, 2), jnp.dtype(dtype))
        some = [np.asarray(make(parse(f"{short}[40]"), seed=seed)).astype(complex) for seed in (1, 1, 2)]
        np.testing.assert_array_equal(some[0], some[1])
        assert np.isfinite(some[0]).all() and len(set(some[0])) > 1 and (some[0] != some[2]).any(), short
    whole = np.asarray(make(parse("i32[200]")))
    assert set(whole.tolist()) == {0, 1}


def test_sixty_four_bits_are_refused_where_jax_would_narrow_them() -> None:
    for word in ("f64[3]", "i64[3]", "c128[3]"):
        with pytest.raises(JaxperfError, match="JAX_ENABLE_X64=1"):
            make(parse(word))
        with jax.enable_x64(True):
            assert make(parse(word)).dtype == jnp.dtype(DTYPES[word[: word.index("[")]])


def test_keys_and_python_values_are_handed_over() -> None:
    key = make(parse("key(7)"))
    assert (jax.random.key_data(key) == jax.random.key_data(jax.random.key(7))).all()
    assert (make(parse("3")), make(parse("(1, 'a')"))) == (3, (1, "a"))


def test_a_wrong_word_is_one_line_that_names_it() -> None:
    mistakes = {
        "f32[3": "'f32[3' is not understood",
        "f32[3]]": "is not understood",
        "f33[3]": "no dtype 'f33'; there are bool",
        "f32[3,]": "'' is not a length",
        "f32[-1]": "'-1' is not a length",
        "f32[n]": "'n' is not a length",
        "f32[9999999999999999]": "is not a length",
        "batch": "give an array like f32[256,28,28,1]",
        "__import__('os')": "is not understood",
        "(" * 5000: "is not understood",
        "...": "is not understood",
        "[{1, 2}]": "is not understood",
        "{1: 2, 'a': 3}": "is not understood",
    }
    for word, says in mistakes.items():
        with pytest.raises(JaxperfError) as caught:
            parse(word)
        assert says in str(caught.value) and "\n" not in str(caught.value), word
    for arguments, says in (
        (["n=1", "n=2"], "'n' is given twice"),
        (["n=1", "3"], "'3' has no name but follows"),
    ):
        with pytest.raises(JaxperfError, match=says):
            parse_all(arguments)
    with pytest.raises(JaxperfError, match="400,000,000,000,000 bytes, but only"):
        make(parse("f32[10000000,10000000]"))
