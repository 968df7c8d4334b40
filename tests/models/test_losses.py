"""The book's losses are optax's, and its update rule is ours: held to the definitions and to MXNet's."""

import jax.numpy as jnp
import numpy as np
import optax
from mxnet_fixtures import load, mlp_batch

from jaxperf.models import sgd


def test_optax_softmax_loss_is_gluons_given_gluons_logits():  # MXNet's float32 softmax is good to 3e-6
    answers = load("mlp")
    _, _, y = mlp_batch(int(answers["seed"]))
    values = optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(answers["sound/float32/logits"]), y)
    np.testing.assert_allclose(values, answers["sound/float32/softmax"], rtol=0, atol=1e-5)


def test_optax_l2_loss_averaged_over_outputs_is_gluons():
    answers = load("mlp")
    _, target, _ = mlp_batch(int(answers["seed"]))
    values = optax.l2_loss(jnp.asarray(answers["sound/float32/logits"]), target).mean(1)
    np.testing.assert_allclose(values, answers["sound/float32/l2"], rtol=1e-6)


def test_sgd_divides_by_the_whole_batch_and_leaves_its_input_alone():
    params, grads = [jnp.array([1.0, 2.0]), jnp.array(3.0)], [jnp.array([4.0, 8.0]), jnp.array(-4.0)]
    new = sgd(params, grads, lr=0.5, batch_size=4)
    np.testing.assert_array_equal(new[0], [0.5, 1.0])
    assert float(new[1]) == 3.5
    np.testing.assert_array_equal(params[0], [1.0, 2.0])


def test_sgd_over_shares_of_a_batch_is_sgd_over_the_batch():
    params, shares = [jnp.ones(3)], [[jnp.array([1.0, 2.0, 3.0])], [jnp.array([5.0, 7.0, 9.0])]]
    summed = [shares[0][0] + shares[1][0]]
    both = [share_of[0] / 2 for share_of in shares]  # each share's mean gradient over its own two examples
    np.testing.assert_allclose(sgd(params, summed, 0.1, 4)[0], params[0] - 0.1 * (both[0] + both[1]) / 2)
