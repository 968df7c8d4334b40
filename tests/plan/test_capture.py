from pathlib import Path

import pytest

from jaxperf import cli
from jaxperf.errors import JaxperfError
from jaxperf.plan.first_step import first_step

PLAIN = """
import sys
from functools import partial
import jax, jax.numpy as jnp

class Trainer:
    @partial(jax.jit, static_argnums=0)
    def step(self, w, x):
        return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)

@jax.jit
def init(key):
    return jax.random.normal(key, (5, 3))

if __name__ == "__main__":
    assert sys.argv[1:] == ["--epochs", "2"]
    w = init(jax.random.key(0))
    for _ in range(3):
        w = Trainer().step(w, jnp.ones((16, 5)))
    open("ran", "w").close()
"""
NNX = """
import jax, jax.numpy as jnp, optax
from flax import nnx

class Net(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(5, 3, rngs=rngs)
    def __call__(self, x):
        return self.dense(x)

@nnx.jit
def train(net, optimizer, x):
    grads = nnx.grad(lambda net: (net(x) ** 2).mean())(net)
    optimizer.update(net, grads)

net = Net(nnx.Rngs(0))
optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)
train(net, optimizer, jnp.ones((16, 5)))
open("ran", "w").close()
"""
STATE = """
import jax, jax.numpy as jnp, optax
from flax import linen as nn
from flax.training.train_state import TrainState

net = nn.Dense(3)
x = jnp.ones((16, 5))
state = TrainState.create(apply_fn=net.apply, params=net.init(jax.random.key(0), x), tx=optax.sgd(0.1))

@jax.jit
def train_step(state, batch):
    grads = jax.grad(lambda p: (state.apply_fn(p, batch) ** 2).mean())(state.params)
    return state.apply_gradients(grads=grads)

state = train_step(state, batch=x)
open("ran", "w").close()
"""
EQUINOX = """
import equinox as eqx, jax, jax.numpy as jnp

net = eqx.nn.Linear(5, 3, key=jax.random.key(0))

@eqx.filter_jit
def make_step(net, x):
    grads = eqx.filter_grad(lambda net: (jax.vmap(net)(x) ** 2).mean())(net)
    return jax.tree.map(lambda p, g: p - 0.1 * g, net, grads)

net = make_step(net, jnp.ones((16, 5)))
open("ran", "w").close()
"""


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
@pytest.mark.parametrize(
    ("program", "arguments"),
    [(PLAIN, ("--epochs", "2")), (NNX, ()), (STATE, ()), (EQUINOX, ())],
    ids=["method", "nnx", "TrainState", "equinox"],
)
def test_a_program_is_planned_and_does_not_train(program, arguments, tmp_path, monkeypatch, capsys):
    if program is EQUINOX:
        pytest.importorskip("equinox")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(program)
    assert cli.main(["plan", "--devices", "1,8", "--", "python", "train.py", *arguments]) == 0
    out = capsys.readouterr().out
    assert "16" in out and "128" in out and "all-reduce" in out and "train.py:" in out
    assert not Path("ran").exists()


@pytest.mark.usefixtures("cpus_as_gpus")
def test_programs_without_a_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "import jax, jax.numpy as jnp\njax.jit(jnp.sin)(1.0)\nraise SystemExit(0)\n"
    Path("only_init.py").write_text(text)
    Path("fails.py").write_text("1 / 0\n")
    for words, message in (
        (["python", "only_init.py"], "only_init.py ended without a training step"),
        (["fails.py"], "fails.py raised ZeroDivisionError"),
        (["python"], "no program after --"),
        (["python", "nowhere.py"], "there is no program nowhere.py"),
    ):
        with pytest.raises(JaxperfError, match=message):
            first_step(words)
