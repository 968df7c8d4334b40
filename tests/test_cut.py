import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxperf.errors import JaxperfError
from jaxperf.measure import count_ops
from jaxperf.parallel import first_devices
from jaxperf.parallel.cut import compile_on, cut, run_together

cpus = functools.partial(first_devices, platform="cpu")  # eight of them, wherever the tests run

AXIS = "devices"


def both(fn, *args, k=2):
    """What `fn` gives under `pmap`, and cut and run by hand; `args` have a leading axis of k."""
    expected = jax.pmap(fn, axis_name=AXIS, devices=jax.devices("cpu")[:k])(*args)
    devices = cpus(k)
    shares = [jax.device_put(tuple(a[i] for a in args), d) for i, d in enumerate(devices)]
    program = cut(fn, *shares[0], axis_name=AXIS, axis_size=k)
    found = run_together(compile_on([program] * k, devices), shares)
    for i, tree in enumerate(found):
        assert jax.tree.structure(tree) == jax.tree.structure(expected)
        for mine, theirs in zip(jax.tree.leaves(tree), jax.tree.leaves(expected)):
            np.testing.assert_allclose(mine, np.asarray(theirs)[i], rtol=1e-5, atol=1e-6)
    return program


def normalised(x, w):
    """BatchNorm's pattern: a sum in the middle, and another on the way back."""

    def loss(w):
        h = jnp.tanh(x @ w)
        return ((h - lax.pmean(h.mean(0), AXIS)) ** 2 * jnp.arange(2.0)).sum()

    value, grad = jax.value_and_grad(loss)(w)
    return lax.psum((value, grad), AXIS), value


@pytest.mark.parametrize("k", [1, 2, 4])
def test_sums_in_the_middle_and_in_the_gradient_equal_pmap(k):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(k, 3, 4)).astype(np.float32)
    w = np.broadcast_to(rng.normal(size=(4, 2)).astype(np.float32), (k, 4, 2))
    assert len(both(normalised, x, w, k=k).pieces) == 3  # each ends in a sum: the mean, its gradient, the end


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: lax.psum(x, AXIS),
        lambda x: x + 1,
        lambda x: (x, lax.psum(x, AXIS) * 2, 3.0),
        lambda x: {"a": lax.psum((x, x * x), AXIS), "b": lax.psum(lax.psum(x.sum(), AXIS), AXIS)},
    ],
    ids=["only a sum", "no sum", "an input, a number", "sums of sums"],
)
def test_any_order_of_sums_equals_pmap(fn):
    both(fn, np.arange(6, dtype=np.float32).reshape(2, 3))


def test_no_piece_holds_a_collective():
    x = jnp.ones((3, 4))
    program = cut(normalised, x, jnp.ones((4, 2)), axis_name=AXIS, axis_size=2)
    program, _ = compile_on([program] * 2, cpus(2))
    assert program.pieces[0].text
    for piece in program.pieces:
        assert not {op for op in count_ops(piece.text) if op.startswith("all-")}


def test_values_live_only_as_long_as_they_are_needed():
    def fn(x):
        big = jnp.outer(x, x)
        total = lax.psum(big.sum(), AXIS)
        return lax.psum(total * x.sum(), AXIS)

    first, second, *_ = cut(fn, jnp.ones(50), axis_name=AXIS, axis_size=2).pieces
    assert {v.aval.shape for v in first.kept} == {(50,), ()}
    assert {v.aval.shape for v in second.kept} == {()}


@pytest.mark.parametrize(
    "wrap", [jax.jit, lambda f: lambda x: lax.scan(lambda c, _: (f(c), 0), x, None, 2)[0]]
)
def test_a_sum_that_cannot_be_reached_is_told(wrap):
    with pytest.raises(JaxperfError, match=r"a sum over devices inside a (jit|scan) cannot be cut"):
        cut(wrap(lambda x: lax.psum(x, AXIS)), jnp.ones(3), axis_name=AXIS, axis_size=2)


def test_captured_arrays_are_refused():
    captured = jnp.arange(3.0)
    with pytest.raises(JaxperfError, match="captures arrays"):
        cut(lambda x: lax.psum(x * captured, AXIS), jnp.ones(3), axis_name=AXIS, axis_size=2)
