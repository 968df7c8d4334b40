import jax
import numpy as np
import pytest
from flax import nnx

from jaxperf.errors import JaxperfError
from jaxperf.measure.compile_log import nothing_compiles
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


def runs_of(kind):
    runs = []

    class Counting(kind):
        def __call__(self, x, **kwargs):
            runs.append(x.shape)
            return super().__call__(x, **kwargs)

    return Counting, runs


def test_the_output_stays_the_same_and_python_runs_once_a_shape():
    net = Mlp(nnx.Rngs(0))
    counting, runs = runs_of(Mlp)
    compiled = hybridize(counting(nnx.Rngs(0)))
    for rows in (3, 3, 2, 3, 2):
        close(compiled(X[:rows]), net(X[:rows]))
    assert runs == [(3, 8), (2, 8)]


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
    with nothing_compiles("a call with other parameters"):
        after = jax.block_until_ready(compiled(X))
    close(after, net(X))
    assert np.abs(np.asarray(after - before)).max() > 1e-3


@pytest.mark.thorough
def test_training_state_moves_as_in_the_module_itself():
    eager, net = twins(Stateful)
    compiled = hybridize(net)
    for step in range(4):
        close(compiled(X + step), eager(X + step))  # dropout draws new numbers at each step, the same in both
        for value, eager_value in zip(state(net), state(eager)):
            close(value, eager_value)
    assert int(net.drop.rngs.count[...]) == int(eager.drop.rngs.count[...]) == 4


def test_eval_and_train_each_trace_once():
    counting, runs = runs_of(Stateful)
    eager, net = Stateful(nnx.Rngs(1)), counting(nnx.Rngs(1))
    compiled = hybridize(net)
    compiled(X), eager(X)
    for _ in range(2):
        net.eval(), eager.eval()
        close(compiled(X), eager(X))
        net.train(), eager.train()
        close(compiled(X), eager(X))
    assert len(runs) == 2


def test_what_is_no_module_is_refused_with_the_way_out():
    with pytest.raises(JaxperfError, match=r"not a function; for a function use jax\.jit"):
        hybridize(lambda x: x)


def test_a_static_argument_is_a_python_value():
    eager, net = twins(Stateful)
    compiled = hybridize(net, static_argnames=("flip",))
    for flip in (False, True):
        close(compiled(X, flip=flip), eager(X, flip=flip))


@pytest.mark.parametrize("transform", [lambda f: jax.vmap(f)(X[None]), lambda f: jax.eval_shape(f, X)])
def test_a_call_that_changes_the_module_inside_another_transformation_is_one_line(transform):
    net = nnx.Sequential(nnx.Linear(X.shape[1], 3, rngs=nnx.Rngs(0)), nnx.BatchNorm(3, rngs=nnx.Rngs(0)))
    compiled = hybridize(net)
    with pytest.raises(JaxperfError, match=r"^this call changes \S+ of Sequential, .* eval\(\) on it first"):
        transform(compiled)
    net.eval()
    transform(compiled)


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
