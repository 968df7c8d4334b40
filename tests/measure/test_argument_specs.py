import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.measure.user_function import DTYPES, parse, parse_all


def array(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def test_arrays_and_python_values_are_what_their_words_stand_for():
    rng = random.Random(0)
    narrow = {s: long for s, long in DTYPES.items() if s not in ("i64", "u64", "f64", "c128")}
    for _ in range(200):
        short = rng.choice(list(narrow))
        shape = tuple(rng.randrange(0, 10 ** rng.randrange(1, 7)) for _ in range(rng.randrange(5)))
        word = f"{short}[{','.join(map(str, shape))}]"
        assert parse(f"  {word} ", shapes=True) == parse(word, shapes=True) == array(narrow[short], *shape)
    plain = [-3, 0.5, True, None, "same", "f32[3]", "key", ""]
    for value in (*plain, tuple(plain), {"a": [1, 2.5]}):
        assert parse(repr(value)) == value


def test_an_array_has_its_shape_and_dtype_and_the_same_values_each_time():
    for short, dtype in DTYPES.items():
        if dtype in ("int64", "uint64", "float64", "complex128"):
            continue
        array = parse(f"{short}[3,0,2]", seed=1)
        assert (array.shape, array.dtype) == ((3, 0, 2), jnp.dtype(dtype))
        some = [np.asarray(parse(f"{short}[40]", seed=seed)).astype(complex) for seed in (1, 1, 2)]
        np.testing.assert_array_equal(some[0], some[1])
        assert np.isfinite(some[0]).all() and len(set(some[0])) > 1 and (some[0] != some[2]).any(), short
    whole = np.asarray(parse("i32[200]"))
    assert set(whole.tolist()) == {0, 1}


def test_sixty_four_bits_are_refused_where_jax_would_narrow_them():
    for word in ("f64[3]", "i64[3]", "c128[3]"):
        with pytest.raises(JaxperfError, match="JAX_ENABLE_X64=1"):
            parse(word)
        with jax.enable_x64(True):
            assert parse(word).dtype == jnp.dtype(DTYPES[word[: word.index("[")]])


def test_keys_have_their_seeds():
    for word, seed in (("key", 0), ("key(0)", 0), ("key(7)", 7)):
        assert (jax.random.key_data(parse(word)) == jax.random.key_data(jax.random.key(seed))).all()


def test_a_wrong_word_is_one_line_that_names_it():
    mistakes = {
        "f32[3": "'f32[3' is not understood",
        "f32[3]]": "is not understood",
        "f33[3]": "no dtype 'f33'; there are bool",
        "f32[3,]": "'3,' are no lengths",
        "f32[-1]": "'-1' are no lengths",
        "f32[n]": "'n' are no lengths",
        "f32[9999999999999999]": "are no lengths",
        "batch": "give an array like f32[256,28,28,1]",
        "__import__('os')": "is not understood",
        "(" * 5000: "is not understood",
    }
    for word, says in mistakes.items():
        with pytest.raises(JaxperfError) as caught:
            parse(word)
        assert says in str(caught.value) and "\n" not in str(caught.value), word
    for words, says in ((["n=1", "n=2"], "'n' is given twice"), (["n=1", "3"], "'3' has no name but foll")):
        with pytest.raises(JaxperfError, match=says):
            parse_all(words)
    with pytest.raises(JaxperfError, match="400,000,000,000,000 bytes, but only"):
        parse("f32[10000000,10000000]")
