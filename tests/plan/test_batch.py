import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxperf.errors import JaxperfError
from jaxperf.plan import planning
from jaxperf.plan.arguments import find_batch

W, X, Y = jnp.zeros((5, 3)), jnp.zeros((16, 5)), jnp.zeros((16, 3))


def update(w, x, y):
    return w - 0.1 * jax.grad(lambda w: ((x @ w - y) ** 2).mean())(w)


class Trainer:
    @functools.partial(jax.jit, static_argnums=0)
    def step(self, w, x, y):
        return update(w, x, y)


def found(step, *args):
    return find_batch(jax.jit(step), args)[0]


STATE = {"w": W, "m": W}
BATCH = {"x": X, "y": Y, "weight": jnp.float32(1), "key": jax.random.key(0)}
FROZEN = {"w": jnp.zeros((5, 3), jnp.int8), "scale": jnp.zeros((3,), jnp.bfloat16)}
LORA, SHAPED_ALIKE = {"a": jnp.zeros((5, 2), jnp.bfloat16)}, [jnp.zeros((16, 5)), jnp.zeros((3, 16))]
FORMS = {
    "batch first": (lambda x, y, s: {"w": update(s["w"], x, y), "m": s["m"]}, (X, Y, STATE), {0, 1}),
    "one array first": (lambda x, w: (update(w, x, x[:, :3]), 0.0), (X, W), {0}),
    "state between": (lambda w, x, m, y: (update(w, x, y), m), (W, X, {"m": W}, Y), {1, 3}),
    "another length": (lambda w, x, y, t: update(w, x + t.sum(), y), (W, X, Y, jnp.zeros(128)), {1, 2}),
    "a square matrix": (lambda f, w, x: update(w, x @ f, Y), (jnp.zeros((5, 5)), W, X), {2}),
    "the shape of a weight": (
        lambda p, x, y: [a + ((x @ p[0].T) @ p[1].T - y).sum() for a in p], (SHAPED_ALIKE, X, Y), {1, 2}
    ),
    "scalars and keys": (lambda w, b: update(w, b["x"], b["y"]) * b["weight"], (W, BATCH), {1}),
    "frozen parameters": (
        lambda f, p, x: jax.tree.map(lambda a: a + (x @ (f["w"] * f["scale"])).sum(), p),
        (FROZEN, LORA, X), {2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_batch_is_found_in_the_forms_that_steps_have(form):
    step, args, batch = FORMS[form]
    assert found(step, *args) == dict.fromkeys(batch, 0)


@pytest.mark.parametrize("last", [False, True])
def test_frozen_layers_that_are_scanned_are_no_batch(last):
    """A fine-tuning whose adapters come back; the layers that it scans have the same first axis."""
    frozen, adapters = jnp.zeros((7, 5, 5)), jnp.zeros((7, 5, 2))

    def step(adapters, *others):
        x, frozen = others if last else others[::-1]

        def layer(h, w):
            return jnp.tanh(h @ w[0] + h @ w[1] @ w[1].T), None

        return adapters * lax.scan(layer, x, (frozen, adapters))[0].mean()

    others = (X, frozen) if last else (frozen, X)
    assert found(step, adapters, *others) == {1 if last else 2: 0}


@pytest.mark.parametrize(
    ("embedded", "xs"),
    [(lambda w, xs: xs @ w, jnp.zeros((7, 16, 5))), (lambda w, xs: w[xs], jnp.zeros((7, 16), jnp.int32))],
    ids=["arrays", "tokens"],
)
def test_an_example_for_each_sequence_beside_arrays_or_tokens_that_begin_with_the_time(embedded, xs):
    def step(w, xs, y):
        last, _ = lax.scan(lambda h, x: (jnp.tanh(x + h), None), jnp.zeros((16, 3)), embedded(w, xs))
        return w * ((last - y) ** 2).mean()

    with pytest.raises(JaxperfError, match=r"first axis of argument 1, .* --batch 1:axis=1,2 \(or"):
        find_batch(jax.jit(step), (W, xs, Y))


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
def test_arguments_by_name_and_methods_of_objects():
    def given(step, *args, **kwargs):
        (size,) = planning.plan(step, *args, devices=(8,), **kwargs).sizes
        return size.batch, size.batch_arguments, size.collectives

    expected = 128, (1, 2), {"all-reduce": 1}
    assert given(jax.jit(update), W, x=X, y=Y) == expected
    assert given(Trainer().step, W, X, Y) == expected


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
def test_a_step_that_asks_for_a_traced_value_is_not_about_the_batch():
    step = jax.jit(lambda w, x: w if x.sum() > 0 else -w)
    with pytest.raises(JaxperfError, match="raised TracerBoolConversionError") as caught:
        planning.plan(step, W, X, devices=(8,))
    assert "examples" not in str(caught.value)


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
def test_a_carry_that_comes_back_is_named_where_the_step_cannot_be_traced():
    step = jax.jit(lambda w, h, x: (w, jnp.tanh(x @ w + h)))
    with pytest.raises(JaxperfError, match=r"raised TypeError: .*with 128 examples, as by --batch 2, "):
        planning.plan(step, W, Y, X, devices=(8,))
    assert planning.plan(step, W, Y, X, devices=(8,), batch=(1, 2)).sizes[0].batch == 128
