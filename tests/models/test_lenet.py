import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import cases
from flax import nnx
from mxnet_fixtures import DTYPES, KINDS, LENET, LENET_SHAPES, batch, digest_error, load, nhwc, weights

from jaxperf.models import LeNet, from_gluon, lenet, lenet_params, sgd

# In float32 a relu that changes sides moves a gradient by more than rounding does; float64 is the proof.
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
GRADIENTS = {"float32": 1e-2, "float64": 1e-10}


def loss_of(params, X, y):
    logits = lenet(X, params)
    values = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    return values.sum(), (logits, values)


@functools.cache
def trained(kind, dtype):
    """Eight steps on one device: MXNet's answers, each step's (gradients, logits, losses), the update."""
    answers = load("lenet")
    seed = int(answers["seed"])
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        start = params = [jnp.asarray(w, dtype) for w in weights(LENET_SHAPES, kind, seed).values()]
        step = jax.jit(jax.grad(loss_of, has_aux=True))
        update = jax.jit(lambda params, grads: sgd(params, grads, LENET.lr, LENET.batch))
        history = []
        for i in range(LENET.steps):
            X, y = batch(seed, i, LENET.batch)
            grads, aux = step(params, nhwc(X, dtype), y)
            history.append((grads, *aux))
            params = update(params, grads)
        return answers, history, [np.asarray(new - old) for new, old in zip(params, start)]


CASES = cases(itertools.product(KINDS, DTYPES), lambda kind, dtype: (kind, dtype) == ("sound", "float64"))


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_logits_losses_and_gradients_equal_mxnet(kind, dtype):
    answers, history, _ = trained(kind, dtype)
    grads, logits, losses = history[0]
    assert logits.dtype == dtype
    for actual, answer in ((logits, "logits"), (losses, "loss")):
        desired = answers[f"{kind}/{dtype}/{answer}"]
        np.testing.assert_allclose(actual, desired, rtol=0, atol=TOLERANCE[dtype] * np.abs(desired).max())
    errors = digest_error(answers, f"{kind}/{dtype}/grad", [np.asarray(g) for g in grads])
    assert errors.max() < GRADIENTS[dtype]


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("contexts", LENET.contexts)
@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_eight_steps_equal_mxnets_over_any_number_of_contexts(kind, dtype, contexts):
    answers, history, update = trained(kind, dtype)
    case = f"{kind}/{dtype}/{contexts}ctx"
    losses = np.stack([losses for _, _, losses in history])
    np.testing.assert_allclose(losses, answers[f"{case}/loss"], rtol=GRADIENTS[dtype])
    assert digest_error(answers, f"{case}/update", update).max() < GRADIENTS[dtype]


def test_the_module_is_the_function():
    X = nhwc(batch(7, 0, 8)[0])
    # of a size that makes logits matter
    params = [jnp.asarray(w) for w in weights(LENET_SHAPES, "sound", 7).values()]
    net = nnx.eval_shape(lambda: LeNet(rngs=nnx.Rngs(0)))
    module = from_gluon(net, [p.T if p.ndim == 2 else p for p in params])
    by_module, by_function = (jax.jit(net)(X) for net in (module, lambda X: lenet(X, params)))
    np.testing.assert_allclose(by_module, by_function, rtol=1e-5, atol=1e-5)


def test_fresh_params_are_the_books():
    params = lenet_params(jax.random.key(0))
    assert [p.shape for p in params] == list(LENET_SHAPES.values())
    assert {p.dtype.name for p in params} == {"float32"}
    assert all(not p.any() for p in params[1::2])
    assert abs(float(params[4].std()) - 0.01) < 2e-4
    assert abs(float(lenet_params(jax.random.key(0), scale=0.5)[4].std()) - 0.5) < 1e-2
    assert not np.array_equal(params[0], lenet_params(jax.random.key(1))[0])
    assert abs(np.corrcoef(params[0].ravel(), params[2].ravel()[:180])[0, 1]) < 0.5
