"""What programs rest on: calls, operations, compile times, start, and the memory of a step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from registry import probe

CALLS, ARRAYS, ALGEBRA, NETWORKS = "calls and start", "arrays", "linear algebra and random", "networks"


# --- calls


@probe(CALLS)
def empty_program() -> Any:
    """A call of a jitted function that adds 1 to a scalar."""
    return jax.jit(lambda x: x + 1), jnp.float32(0)


def _call_with_leaves(count: int) -> Any:
    leaves = {f"w{i}": jnp.float32(i) for i in range(count)}
    return jax.jit(lambda tree: tree["w0"] + 1), leaves


@probe(CALLS)
def call_with_10_leaves() -> Any:
    """A call of a jitted function with a dictionary of 10 scalars."""
    return _call_with_leaves(10)


@probe(CALLS)
def call_with_100_leaves() -> Any:
    """A call of a jitted function with a dictionary of 100 scalars."""
    return _call_with_leaves(100)


@probe(CALLS)
def call_with_1000_leaves() -> Any:
    """A call of a jitted function with a dictionary of 1,000 scalars."""
    return _call_with_leaves(1000)


@probe(CALLS)
def call_of_nnx_jit() -> Any:
    """A call of Flax's `nnx.jit` with a module of three layers (the Flax that fits this JAX)."""
    from flax import nnx

    layers = [nnx.Linear(4, 4, rngs=nnx.Rngs(i)) for i in range(3)]
    net = nnx.Sequential(*layers)
    return nnx.jit(lambda net, x: net(x)), net, jnp.ones((2, 4))


@probe(CALLS)
def eager_operation() -> Any:
    """`x + y` outside of jit, for arrays of 16 numbers."""
    return lambda x, y: x + y, jnp.ones(16), jnp.ones(16)


@probe(CALLS)
def copy_to_the_device() -> Any:
    """`device_put` of a NumPy array of 4 MB."""
    return jax.device_put, np.ones((1024, 1024), np.float32)


@probe(CALLS, "start")
def import_of_jax() -> str:
    """A process that imports JAX."""
    return "import jax"


@probe(CALLS, "start")
def first_program() -> str:
    """A process that imports JAX, and compiles and runs a first small program."""
    return "import jax; jax.jit(lambda x: x + 1)(1.0).block_until_ready()"


# --- operations


def _numbers(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


@probe(ARRAYS)
def elementwise() -> Any:
    """`tanh(x) * y + x` for a million numbers."""
    return jax.jit(lambda x, y: jnp.tanh(x) * y + x), _numbers(1_000_000), _numbers(1_000_000)


@probe(ARRAYS)
def sum_of_rows() -> Any:
    """Sums of the rows of a 1000x1000 array."""
    return jax.jit(lambda x: x.sum(axis=1)), _numbers(1000, 1000)


@probe(ARRAYS)
def softmax_of_rows() -> Any:
    """Softmax over the rows of a 1000x1000 array."""
    return jax.jit(jax.nn.softmax), _numbers(1000, 1000)


@probe(ARRAYS)
def transposition() -> Any:
    """A 1000x1000 array transposed, plus 1."""
    return jax.jit(lambda x: x.T + 1), _numbers(1000, 1000)


def _indices(count: int, below: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).integers(0, below, count), jnp.int32)


@probe(ARRAYS)
def gather() -> Any:
    """10,000 rows of 16 numbers, gathered from 50,000."""
    return jax.jit(lambda x, i: x[i]), _numbers(50_000, 16), _indices(10_000, 50_000)


@probe(ARRAYS)
def scatter_add() -> Any:
    """10,000 rows of 16 numbers, added to 500 rows by index."""
    add = jax.jit(lambda i, y: jnp.zeros((500, 16)).at[i].add(y))
    return add, _indices(10_000, 500), _numbers(10_000, 16)


@probe(
    ARRAYS, issue="jax-ml/jax#39959",
    told="on a GPU, 0.9.1 to 0.9.2: 1.7 ms to 8.5 ms; here on a CPU",
)  # fmt: skip
def segment_sum() -> Any:
    """`segment_sum` of 10,000 numbers over 500 segments, mapped over 16 columns by `vmap`."""

    def sums(x: jax.Array, i: jax.Array) -> jax.Array:
        return jax.vmap(lambda column: jax.ops.segment_sum(column, i, 500), 1)(x)

    return jax.jit(sums), _numbers(10_000, 16), _indices(10_000, 500)


@probe(ARRAYS)
def sort() -> Any:
    """100,000 numbers, sorted."""
    return jax.jit(jnp.sort), _numbers(100_000)


@probe(ARRAYS)
def cumulative_sum() -> Any:
    """The cumulative sum of 100,000 numbers."""
    return jax.jit(jnp.cumsum), _numbers(100_000)


@probe(ARRAYS)
def scan_over_rows() -> Any:
    """A `scan` of 500 turns: a product of a 64x64 matrix with a vector, and tanh."""

    def states(w: jax.Array, xs: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda h, x: (jnp.tanh(w @ h + x), None), jnp.zeros(64), xs)[0]

    return jax.jit(states), 0.1 * _numbers(64, 64), _numbers(500, 64)


# --- linear algebra and random numbers


@probe(ALGEBRA)
def product_of_matrices() -> Any:
    """The product of two 512x512 matrices in float32."""
    return jax.jit(jnp.matmul), _numbers(512, 512), _numbers(512, 512)


@probe(ALGEBRA)
def product_in_bfloat16() -> Any:
    """The product of two 256x256 matrices in bfloat16."""
    x = _numbers(256, 256).astype(jnp.bfloat16)
    return jax.jit(jnp.matmul), x, x


@probe(ALGEBRA)
def products_of_small_matrices() -> Any:
    """1,000 products of 8x8 matrices."""
    return jax.jit(jnp.matmul), _numbers(1000, 8, 8), _numbers(1000, 8, 8)


@probe(ALGEBRA)
def matrix_by_vector() -> Any:
    """The product of a 1000x1000 matrix with a vector."""
    return jax.jit(jnp.matmul), _numbers(1000, 1000), _numbers(1000)


@probe(ALGEBRA)
def fourier_transform() -> Any:
    """The FFT of a 256x256 array."""
    return jax.jit(jnp.fft.fft2), _numbers(256, 256).astype(jnp.complex64)


@probe(ALGEBRA)
def cholesky() -> Any:
    """The Cholesky factor of a 200x200 matrix."""
    x = _numbers(200, 200)
    return jax.jit(jnp.linalg.cholesky), x @ x.T + 200 * jnp.eye(200)


@probe(ALGEBRA)
def eigenvalues() -> Any:
    """`eigh` of a 100x100 matrix."""
    x = _numbers(100, 100)
    return jax.jit(jnp.linalg.eigh), x + x.T


@probe(ALGEBRA)
def random_bits() -> Any:
    """A million random bits' words."""
    return jax.jit(lambda key: jax.random.bits(key, (1_000_000,))), jax.random.key(0)


@probe(ALGEBRA)
def normal_numbers() -> Any:
    """100,000 normal random numbers."""
    return jax.jit(lambda key: jax.random.normal(key, (100_000,))), jax.random.key(0)


# --- networks


def _convolve(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@probe(NETWORKS)
def convolution() -> Any:
    """A 3x3 convolution of 8 images of 32x32 with 16 channels."""
    return jax.jit(_convolve), _numbers(8, 32, 32, 16), _numbers(3, 3, 16, 16)


@probe(NETWORKS)
def gradient_of_convolution() -> Any:
    """The gradient of a 3x3 convolution of 8 images of 32x32 with 16 channels, by its weights and input."""
    gradient = jax.grad(lambda x, w: jnp.sum(_convolve(x, w) ** 2), argnums=(0, 1))
    return jax.jit(gradient), _numbers(8, 32, 32, 16), _numbers(3, 3, 16, 16)


def _attention(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    q, k, v = (x @ w[name] for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("bid,bjd->bij", q, k) / 8)
    h = x + jnp.einsum("bij,bjd->bid", weights, v)
    return h + jax.nn.gelu(h @ w["up"]) @ w["down"]


def _transformer_step() -> Any:
    sizes = {"q": (64, 64), "k": (64, 64), "v": (64, 64), "up": (64, 256), "down": (256, 64)}
    w = [{name: 0.05 * _numbers(*shape) for name, shape in sizes.items()} for _ in range(4)]

    def loss(w: Any, x: jax.Array) -> jax.Array:
        for layer in w:
            x = _attention(layer, x)
        return jnp.mean(x**2)

    return _descent(loss), w, _numbers(4, 64, 64)


def _descent(loss: Any) -> Any:
    def step(w: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(loss)(w, x))

    return jax.jit(step)


def _perceptron_step() -> Any:
    w = [0.05 * _numbers(256, 256) for _ in range(4)]

    def loss(w: Any, x: jax.Array) -> jax.Array:
        for layer in w:
            x = jax.nn.relu(x @ layer)
        return jnp.mean(x**2)

    return _descent(loss), w, _numbers(128, 256)


def _convolutional_step() -> Any:
    w = [0.1 * _numbers(3, 3, 8 if i else 1, 8) for i in range(6)]

    def loss(w: Any, x: jax.Array) -> jax.Array:
        for i, layer in enumerate(w):
            x = jax.nn.relu(_convolve(x, layer))
            if i % 2:
                x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.mean(x**2)

    return _descent(loss), w, _numbers(16, 28, 28, 1)


@probe(NETWORKS)
def step_of_a_perceptron() -> Any:
    """A training step of four dense layers of 256, batch 128."""
    return _perceptron_step()


@probe(NETWORKS)
def step_of_a_convolutional_network() -> Any:
    """A training step of six 3x3 convolutions with 8 channels, 16 images of 28x28."""
    return _convolutional_step()


@probe(NETWORKS)
def step_of_a_transformer() -> Any:
    """A training step of four attention blocks of width 64, 4 sequences of 64."""
    return _transformer_step()


@probe(NETWORKS, "compile")
def compiling_a_perceptron() -> Any:
    """Stages of the perceptron's step."""
    return _perceptron_step()


@probe(NETWORKS, "compile")
def compiling_a_convolutional_network() -> Any:
    """Stages of the convolutional network's step."""
    return _convolutional_step()


@probe(NETWORKS, "compile")
def compiling_a_transformer() -> Any:
    """Stages of the transformer's step."""
    return _transformer_step()


@probe(NETWORKS, "memory")
def memory_of_a_convolutional_step() -> Any:
    """Temporary memory of the convolutional network's step."""
    return _convolutional_step()


@probe(NETWORKS, "memory")
def memory_of_a_transformer_step() -> Any:
    """Temporary memory of the transformer's step."""
    return _transformer_step()
