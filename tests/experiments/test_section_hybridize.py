import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from mxnet_fixtures import load, mlp_batch, shapes, weights


def test_every_claim_that_needs_no_clock_has_its_verdict(section):
    verdicts = {claim.statement: claim.verdict for claim in section.s.result().claims}
    refuted = "In-place operations such as a += b and a[:] = a + b cannot be used"
    forgets = "Every way that compiles a network also updates its running mean"
    assert verdicts.pop(refuted) == "does not hold"
    assert verdicts.pop(forgets) == "does not hold"
    assert len(verdicts) == 7 and set(verdicts.values()) == {"holds"}


def test_hybridize_sees_parameters_that_are_trained_later(section):
    net, x = section.MLP(nnx.Rngs(1)), jnp.ones((1, 512))
    compiled = section.hybridize(net)
    before = compiled(x)
    net.output.bias[...] += 1.0
    chex.assert_trees_all_close(compiled(x), before + 1, rtol=1e-5)
    chex.assert_trees_all_close(compiled(x), net(x), rtol=1e-5)


def test_the_network_equals_mxnets_before_and_after_hybridize(section):
    answers = load("mlp")
    X, _, _ = mlp_batch(int(answers["seed"]))
    drawn = [*weights(shapes(answers), "sound", int(answers["seed"])).values()]
    net = section.MLP(nnx.Rngs(0))
    for layer, W, b in zip((net.hidden1, net.hidden2, net.output), drawn[::2], drawn[1::2], strict=True):
        layer.kernel[...], layer.bias[...] = W.T, b
    desired = answers["sound/float32/logits"]
    with jax.default_matmul_precision("highest"):
        for call in (net, section.hybridize(net)):
            np.testing.assert_allclose(call(X), desired, rtol=0, atol=1e-5 * np.abs(desired).max())


def test_jax_says_no_where_a_value_is_needed_and_only_there(section):
    errors = {what: jax_says.split(":")[0] for what, (jax_says, _) in section.trials.items()}
    assert errors == {
        "np.asarray(x)": "TracerArrayConversionError",
        "a[:] = a + b": "TypeError",
        "a += b": "works",
        "if x.sum() > 1": "TracerBoolConversionError",
        "if x.ndim == 2": "works",
        "for row in x": "works",
        "for _ in range(n)": "TracerIntegerConversionError",
    }


@pytest.mark.thorough
def test_the_answers_are_right(page):
    assert page.outcome(page.hybridize) == (True, False)
    assert page.outcome(jax.jit) == ("TraceContextError", "")
    assert page.outcome(page.hybridize_training) == (True, True)
    for rows in (page.rows, page.rows / 100):
        for fn in (page.if_where, page.if_cond):
            chex.assert_trees_all_close(jax.jit(fn)(rows), page.if_value(rows))
    chex.assert_trees_all_close(page.for_fori(page.rows, 3), page.for_range(page.rows, 3))
    assert [len(page.pad(request)) for request in page.requests[:9]] == [1, 2, 4, 4, 8, 8, 8, 8, 16]
