"""Small programs in which the causes of public threads about compile time are rebuilt.

- vmex: a set-up of many operations outside jit, each of which becomes a program (uwplasma/vmex 227 and 396).
- repeats: a typo has a step compiled again for each call (jax-ml/jax 4390).
- keys: modules split a random key for each part of theirs, in a Python loop (patrick-kidger/equinox 1132).
- slow: Python itself is slow while a function is traced (jax-ml/jax 29809: nobody says what takes long).
- alike: the same operations for other types, called by the program or by a library for a whole tree.
"""

SETUP = """
import jax, jax.numpy as jnp

def baselines(n):
    r = jnp.linspace(0.0, 1.0, n)
    a = jnp.sin(r) + 2.0
    b = jnp.sqrt(a * r + 0.5)
    c = jnp.cumsum(b) / jnp.max(a)
    d = jnp.where(c > 0.5, c, -b)
    return jnp.stack([a, b, c, d]).sum(axis=0)

@jax.jit
def step(x):
    return x * 0.9 + 1.0

JIT
for stage in (11, 23, 35):
    x = step(baselines(stage))
"""

REPEATS = """
import functools
import jax, jax.numpy as jnp

@functools.partial(jax.jit, static_argnames="rate")
def step(w, rate):
    return w - rate * jnp.cos(w)

w = jnp.ones(8)
for turn in range(12):
    w = step(w, rate=0.1 / (1 + turn))
"""

KEYS = """
import jax, jax.numpy as jnp

class Block:
    def __init__(self, w):
        self.w = w

    def __call__(self, x, key):
        first, second, third = jax.random.split(key, 3)
        x = jnp.tanh(x @ self.w)
        return x * jax.random.bernoulli(second, 0.9, x.shape)

blocks = [Block(jnp.full((16, 16), 0.01 * i)) for i in range(24)]

@jax.jit
def forward(x, key):
    for block in blocks:
        key, inner = jax.random.split(key)
        x = block(x, inner)
    return x.sum()

forward(jnp.ones((4, 16)), jax.random.key(0))
"""

SLOW = """
import time
import jax, jax.numpy as jnp
from jaxperf.watch import session

stacks = session._open_watch.log.stacks

def read_table(i):
    seen = len(stacks) + 4  # what takes long is what the watch sees often, however busy the machine is
    while len(stacks) < seen:
        time.sleep(0.001)
    return float(i)

@jax.jit
def step(x):
    for i in range(20):
        x = x + read_table(i)
    return x

step(jnp.ones(3) + 1.0)
"""

ALIKE = """
import jax, jax.numpy as jnp, numpy as np
import optax

tree = [jax.device_put(np.ones(n, np.float32)) for n in (3, 4)]
optax.tree_utils.tree_zeros_like(tree)
for n in (5, 6):
    for row in jax.device_put(np.ones((n, 2), np.float32)):
        pass
for value in (np.float32(1.0), 1.0, 1):
    jax.lax.neg(value)
for shape in ((2, 3), (6,)):
    jax.lax.reshape(tree[0][:0], (0, *shape))

@jax.jit
def step(x):
    return x + 1

jax.eval_shape(step, tree[0])
"""
