"""The stages on their own: each taken once, and told apart from the steady run."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental.compilation_cache import compilation_cache

from jaxperf.errors import JaxperfError
from jaxperf.measure.stages import Stages, count_traces, stages

BRIEF: dict[str, Any] = {"warmup_calls": 1, "warmup_s": 0, "min_values": 2, "max_values": 2, "loops": 1}
take = functools.partial(stages, measure_options=BRIEF)


def product(x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ x)


def power(x: jax.Array, n: int, *, flip: bool = False) -> jax.Array:
    """`n` and `flip` must be static: Python looks at them."""
    for _ in range(n):
        x = x * x
    return -x if flip else x


def assert_complete(measured: Stages) -> None:
    for seconds in (
        measured.trace_s,
        measured.lower_s,
        measured.compile_s,
        measured.first_run_s,
        measured.steady.median,
    ):
        assert seconds > 0
    assert len(measured.steady.values) == 2


def test_each_stage_takes_time_and_python_runs_once() -> None:
    counted = count_traces(product)
    measured = take(counted, jnp.ones((8, 8)))
    assert_complete(measured)
    assert counted.traces == 1
    assert measured.steady.name == "product"
    np.testing.assert_allclose(measured.compiled(jnp.ones((8, 8))), product(jnp.ones((8, 8))), rtol=1e-6)


def test_a_function_that_is_jitted_and_warm_is_traced_afresh_and_once() -> None:
    counted = count_traces(product)
    jitted, x = jax.jit(counted), jnp.ones((8, 8))
    jitted(x)
    jitted(x)
    assert counted.traces == 1
    assert_complete(take(jitted, x))
    assert counted.traces == 2


def test_staging_twice_traces_twice() -> None:
    counted = count_traces(product)
    for _ in range(2):
        take(counted, jnp.ones((8, 8)))
    assert counted.traces == 2


def test_the_steady_run_is_measured_under_the_given_name() -> None:
    assert take(product, jnp.ones((2, 2)), name="aot").steady.name == "aot"


def test_static_values_are_built_into_the_program() -> None:
    names, x = ("n", "flip"), jnp.full(3, 2.0)
    for fn in (power, jax.jit(power, static_argnames=names)):
        measured = take(fn, x, n=3, flip=True, static_argnames=names)
        assert_complete(measured)
        np.testing.assert_array_equal(measured.compiled(x), [-256.0] * 3)


def test_a_jitted_function_need_not_be_told_again_what_is_static() -> None:
    fn = jax.jit(power, static_argnames=("n", "flip"))
    assert take(fn, jnp.ones(3), n=2, flip=False).program.jaxpr_equations == 2


def test_a_static_value_by_position_is_one_line() -> None:
    for fn in (power, jax.jit(power, static_argnames="n")):
        with pytest.raises(JaxperfError, match=r"^stages\(power\): 1 of 2 positional .* by name$"):
            take(fn, jnp.ones(3), 2, static_argnames=("n",))


def test_dynamic_arguments_may_go_by_name() -> None:
    def affine(x: jax.Array, *, scale: jax.Array, shift: jax.Array) -> jax.Array:
        return x * scale + shift

    measured = take(affine, jnp.ones(3), scale=jnp.float32(2), shift=jnp.ones(3))
    np.testing.assert_array_equal(
        measured.compiled(jnp.ones(3), scale=jnp.float32(2), shift=jnp.ones(3)), [3.0, 3.0, 3.0]
    )


def test_pytrees_modules_and_nnx_jit_go_through_all_stages() -> None:
    model, x = nnx.Linear(4, 2, rngs=nnx.Rngs(0)), jnp.ones((3, 4))
    assert_complete(take(lambda p, x: p["w"] @ x, {"w": jnp.ones((3, 3))}, jnp.ones(3)))
    assert_complete(take(nnx.jit(lambda m, x: m(x)), model, x))


def test_count_traces_counts_python_and_keeps_the_name() -> None:
    counted = count_traces(product)
    jitted = jax.jit(counted)
    for size in (2, 2, 3, 3, 2):
        jitted(jnp.ones((size, size)))
    assert counted.traces == 2  # one for each shape
    counted(jnp.ones((2, 2)))
    assert counted.traces == 3  # outside of jit every call counts
    assert counted.__name__ == "product"


@pytest.fixture
def cache(tmp_path: Path, compiles_anew: None) -> Iterator[Path]:
    """A compile cache of its own that takes even the shortest compile."""
    settings: dict[str, Any] = {
        "jax_compilation_cache_dir": str(tmp_path / "cache"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path / "cache"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_the_compile_cache_is_unknown_when_there_is_none(compiles_anew: None) -> None:
    assert take(product, jnp.ones((5, 5))).cache_hit is None


def test_the_compile_cache_misses_once_and_then_hits(cache: Path) -> None:
    assert take(product, jnp.ones((6, 6))).cache_hit is False
    assert list(cache.iterdir())
    assert take(product, jnp.ones((6, 6))).cache_hit is True
    assert take(product, jnp.ones((7, 7))).cache_hit is False


def test_a_cache_that_is_switched_off_is_unknown(cache: Path) -> None:
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        assert take(product, jnp.ones((6, 6))).cache_hit is None
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
