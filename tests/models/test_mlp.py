import itertools

import jax
import numpy as np
import optax
import pytest
from cases import cases
from flax import nnx
from mxnet_fixtures import DTYPES, KINDS, MLP_SIZES, digest_error, load, mlp_batch, shapes, weights

from jaxperf.models import MLP, from_gluon, to_gluon

LOSSES = {
    "softmax": lambda logits, target, y: optax.softmax_cross_entropy_with_integer_labels(logits, y),
    "l2": lambda logits, target, y: optax.l2_loss(logits, target).mean(1),
}
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
# MXNet's float32 softmax is good to 3e-6; the last bias sums it over labels that nearly cancel.
GRADIENTS = {"float32": 1e-2, "float64": 1e-10}


CASES = cases(
    itertools.product(LOSSES, KINDS, DTYPES),
    quick=lambda *case: case in {("softmax", "sound", "float64"), ("l2", "book", "float32")},
)


@pytest.mark.parametrize(("name", "kind", "dtype"), CASES)
def test_outputs_losses_and_gradients_equal_mxnet(name, kind, dtype):
    answers, case, tolerance = load("mlp"), f"{kind}/{dtype}", TOLERANCE[dtype]
    X, target, y = mlp_batch(int(answers["seed"]))
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        net = nnx.eval_shape(lambda: MLP(MLP_SIZES, rngs=nnx.Rngs(0)))
        from_gluon(net, weights(shapes(answers), kind, int(answers["seed"])))
        graph, params = nnx.split(net, nnx.Param)
        params = jax.tree.map(lambda a: a.astype(dtype), params)

        def loss(params):
            logits = nnx.merge(graph, params)(X.astype(dtype))
            values = LOSSES[name](logits, target.astype(dtype), y)
            return values.sum(), (logits, values)

        grads, (logits, values) = jax.jit(jax.grad(loss, has_aux=True))(params)
        gluon = list(to_gluon(nnx.merge(graph, grads)).values())
        errors = digest_error(answers, f"{case}/{name}_grad", gluon)
    assert logits.dtype == dtype
    for actual, desired in ((logits, answers[f"{case}/logits"]), (values, answers[f"{case}/{name}"])):
        np.testing.assert_allclose(actual, desired, rtol=tolerance, atol=tolerance * np.abs(desired).max())
    assert errors.max() < GRADIENTS[dtype]
    assert np.median(errors) < tolerance
