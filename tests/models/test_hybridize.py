"""`hybridize`: equal outputs, one trace, live parameters, state written back, the reason of a retrace."""

from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxperf.errors import JaxperfError
from jaxperf.models.hybridize import hybridize

X = jax.random.normal(jax.random.key(7), (3, 8))


class Mlp(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(8, 16, rngs=rngs)
        self.output = nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, x):
        return self.output(nnx.relu(self.hidden(x)))


class Stateful(nnx.Module):
    """BatchNorm statistics, dropout's key, a tied weight and a keyword that Python branches on."""

    def __init__(self, rngs):
        self.first = nnx.Linear(8, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.tied = self.first

    def __call__(self, x, *, flip=False):
        y = self.tied(self.drop(self.norm(self.first(x))))
        return -y if flip else y


def twins(kind):
    return kind(nnx.Rngs(1)), kind(nnx.Rngs(1))


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def state(net):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(net, nnx.BatchStat))]


def test_the_output_stays_the_same_and_python_runs_once():
    net = Mlp(nnx.Rngs(0))
    compiled = hybridize(net)
    for _ in range(3):
        close(compiled(X), net(X))
    assert len(compiled.traces) == 1
    assert compiled.traces[0].reason == "first call"


def test_the_modules_own_code_runs_once_a_trace():
    net = Mlp(nnx.Rngs(0))
    counter = Mock(side_effect=nnx.relu)

    class Counting(Mlp):
        def __call__(self, x):
            return self.output(counter(self.hidden(x)))

    net = Counting(nnx.Rngs(0))
    compiled = hybridize(net)
    for rows in (3, 3, 2, 3, 2):
        compiled(X[:rows])
    assert counter.call_count == len(compiled.traces) == 2


@pytest.mark.parametrize("change", ["in place", "value", "new variable", "new layer"])
def test_parameters_changed_since_are_seen_without_a_new_trace(change):
    net = Mlp(nnx.Rngs(0))
    compiled = hybridize(net)
    before = compiled(X)
    if change == "in place":
        net.hidden.kernel[...] = net.hidden.kernel[...] * 2
    elif change == "value":
        net.hidden.kernel.set_value(net.hidden.kernel[...] * 2)
    elif change == "new variable":
        net.hidden.kernel = nnx.Param(net.hidden.kernel[...] * 2)
    else:
        net.hidden = nnx.Linear(8, 16, rngs=nnx.Rngs(9))
    close(compiled(X), net(X))
    assert np.abs(np.asarray(compiled(X) - before)).max() > 1e-3
    assert len(compiled.traces) == 1


@pytest.mark.thorough
def test_training_state_moves_as_in_the_module_itself():
    eager, net = twins(Stateful)
    compiled = hybridize(net)
    for step in range(4):
        close(compiled(X + step), eager(X + step))  # dropout draws new numbers at each step, the same in both
        for value, eager_value in zip(state(net), state(eager)):
            close(value, eager_value)
    assert int(net.drop.rngs.count[...]) == int(eager.drop.rngs.count[...]) == 4
    assert len(compiled.traces) == 1


def test_eval_and_train_each_trace_once_and_the_reason_names_the_flags():
    eager, net = twins(Stateful)
    compiled = hybridize(net)
    compiled(X), eager(X)
    for _ in range(2):
        net.eval(), eager.eval()
        close(compiled(X), eager(X))
        net.train(), eager.train()
        close(compiled(X), eager(X))
    assert len(compiled.traces) == 2
    assert "norm/use_running_average: False -> True" in compiled.traces[1].reason


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (X[:2], "x: float32[3,8] -> float32[2,8]"),
        (X.astype(jnp.bfloat16), "x: float32[3,8] -> bfloat16[3,8]"),
    ],
)
def test_a_retrace_is_explained_by_the_argument_and_both_its_types(second, reason):
    compiled = hybridize(Mlp(nnx.Rngs(0)))
    compiled(X)
    compiled(second)
    assert compiled.traces[1].reason == reason


def test_a_weak_type_and_a_static_value_are_reasons_too():
    class Scaled(Mlp):
        def __call__(self, x, scale=1.0, *, flip=False):
            return super().__call__(x) * scale * (-1 if flip else 1)

    compiled = hybridize(Scaled(nnx.Rngs(0)), static_argnames=("flip",))
    compiled(X, jnp.float32(2))
    compiled(X, 2.0)
    compiled(X, 2.0, flip=True)
    reasons = [t.reason for t in compiled.traces]
    assert reasons[1] == "scale: float32[] -> weak float32[]"
    assert reasons[2].startswith("flip: absent -> True")


def test_a_parameter_of_another_dtype_is_a_reason():
    net = Mlp(nnx.Rngs(0))
    compiled = hybridize(net)
    compiled(X)
    net.hidden.kernel.set_value(net.hidden.kernel[...].astype(jnp.bfloat16))
    compiled(X)
    assert compiled.traces[1].reason == "hidden/kernel: float32[8,16] -> bfloat16[8,16]"


def test_compiled_ahead_of_time_it_never_traces_and_still_sees_the_parameters():
    eager, net = twins(Stateful)
    compiled = hybridize(net)
    ahead = compiled.compile(jax.ShapeDtypeStruct(X.shape, X.dtype))
    traces = len(compiled.traces)
    for _ in range(2):
        close(ahead(X), eager(X))
    net.first.kernel[...] = eager.first.kernel[...] = jnp.zeros((8, 8))
    close(ahead(X), eager(X))
    assert len(compiled.traces) == traces == 1
    with pytest.raises(TypeError):
        ahead(X[:2])


def test_leaves_and_their_names_are_the_modules_arrays_in_the_order_of_the_program():
    net = Mlp(nnx.Rngs(0))
    compiled = hybridize(net)
    named = dict(zip(compiled.leaf_names(), compiled.leaves()))
    np.testing.assert_array_equal(named["hidden/kernel"], net.hidden.kernel[...])
    output, changed = compiled.function(compiled.leaves(), X)
    close(output, net(X))
    assert changed == {}


def test_what_is_asked_without_a_call_is_of_the_module_as_it_is_now():
    net = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    compiled, x = hybridize(net), X[:, :3]
    compiled(x)
    net.eval()
    close(compiled.compile(x)(x), net(x))
    close(compiled.function(compiled.leaves(), x)[0], net(x))


def test_gradients_flow_through_the_compiled_function():
    compiled = hybridize(Mlp(nnx.Rngs(0)))
    gradients = jax.grad(lambda leaves: compiled.function(leaves, X)[0].sum())(compiled.leaves())
    expected = nnx.grad(lambda net: net(X).sum())(compiled.net)
    for gradient, expected_gradient in zip(gradients, jax.tree.leaves(expected)):
        close(gradient, expected_gradient)


def test_what_is_no_module_is_refused_with_the_way_out():
    with pytest.raises(JaxperfError, match=r"not a function; for a function use jax\.jit"):
        hybridize(lambda x: x)


def test_a_call_that_changes_the_module_itself_is_refused():
    class Counting(Mlp):
        calls = 0

        def __call__(self, x):
            self.calls += 1
            return super().__call__(x)

    class Growing(Mlp):
        def __call__(self, x):
            self.seen = nnx.Variable(x)
            return super().__call__(x)

    for kind in (Counting, Growing):
        with pytest.raises(JaxperfError, match="changes its attributes or adds variables"):
            hybridize(kind(nnx.Rngs(0)))(X)
