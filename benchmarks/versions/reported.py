"""Slow, large or wrong programs of public issues, each written anew and as small as shows the fault on a CPU.

`told` has what the issue tells of other machines; what these programs do here is measured.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from registry import probe

LOOPS, FUSION, FLOAT64, WRONG = "loops", "fusion", "float64", "right results"


@probe(
    LOOPS, issue="jax-ml/jax#40101",
    told="0.11.0 to 0.11.1: 1.4 ms to 13.2 s for 200,000 points; each turn rewrites the whole array",
)  # fmt: skip
def path_written_in_a_loop() -> Any:
    """A path of 20,000 points, each written into its array by a `fori_loop`."""

    def path(noise: jax.Array) -> jax.Array:
        def body(t: Any, x: jax.Array) -> jax.Array:
            return x.at[t + 1].set(0.9 * x[t] + noise[t])

        return jax.lax.fori_loop(0, noise.size - 1, body, jnp.zeros(noise.size))

    return jax.jit(path), jnp.linspace(-1.0, 1.0, 20_000)


@probe(
    LOOPS, issue="jax-ml/jax#40101",
    told="0.11.0 to 0.11.1: 1.2 ms to 13.1 s for 200,000 turns, if the outputs are stacked",
)  # fmt: skip
def outputs_of_scan() -> Any:
    """A `scan` of 20,000 turns over scalars that stacks an output of each turn."""

    def states(noise: jax.Array) -> jax.Array:
        def step(x: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = 0.9 * x + e
            return x, x

        return jax.lax.scan(step, jnp.float32(0), noise)[1]

    return jax.jit(states), jnp.linspace(-1.0, 1.0, 20_000)


@probe(
    LOOPS, issue="jax-ml/jax#31284",
    told="0.7.0 to 0.7.1: 63 ms to 2.2 s for 80,000 turns; each turn copies the array",
)  # fmt: skip
def random_reads_in_a_loop() -> Any:
    """A `while_loop` of 10,000 turns that reads a random element of its array and writes another."""

    def fill(start: jax.Array) -> jax.Array:
        def body(carry: Any) -> Any:
            turn, xs = carry
            i = jax.random.randint(jax.random.key(turn), (), 0, 2)
            return turn + 1, xs.at[turn].set(xs[i])

        return jax.lax.while_loop(lambda carry: carry[0] < carry[1].size, body, (0, start))[1]

    return jax.jit(fill), jnp.zeros(10_000)


@probe(
    LOOPS, issue="jax-ml/jax#40150",
    told="0.4.31 to 0.11.1: 60 times; the gradient of 614 turns over 60 scalars takes 28 ms, forward 6 ms",
)  # fmt: skip
def gradient_of_scan_over_scalars() -> Any:
    """The gradient of a `scan` of 200 turns whose carry holds 30 scalars."""

    def loss(rate: jax.Array) -> Any:
        def step(xs: list[jax.Array], _: None) -> tuple[list[jax.Array], None]:
            return [x + rate * jnp.tanh(y - x) for x, y in zip(xs, [*xs[1:], xs[0]])], None

        return sum(jax.lax.scan(step, [jnp.float32(i) for i in range(30)], None, length=200)[0])

    return jax.jit(jax.grad(loss)), jnp.float32(0.1)


@probe(
    LOOPS, issue="jax-ml/jax#25190",
    told="0.4.31 to 0.4.33: 2 s to 42 s for 4 million turns on 96 devices of a CPU",
)  # fmt: skip
def loop_over_scalars() -> Any:
    """A `while_loop` of 20,000 turns over two scalars."""

    def count(values: jax.Array) -> Any:
        def body(carry: Any) -> Any:
            best, i = carry
            return jnp.maximum(best, values[i]), i + 1

        return jax.lax.while_loop(lambda c: (c[0] < values.size) & (c[1] < values.size), body, (0, 0))[0]

    return jax.jit(count), jnp.arange(20_000)


@probe(
    LOOPS, issue="jax-ml/jax#26021",
    told="0.4.31 to 0.4.33: a third of the speed, for many operations on small arrays",
)  # fmt: skip
def many_small_operations() -> Any:
    """A chain of 40 frames, each a product of 4x4 matrices of a joint's angle."""

    def last_frame(angles: jax.Array) -> jax.Array:
        frame = jnp.eye(4)
        for i in range(40):
            c, s = jnp.cos(angles[i]), jnp.sin(angles[i])
            joint = jnp.eye(4).at[0, 0].set(c).at[0, 1].set(-s).at[1, 0].set(s).at[1, 1].set(c)
            frame = frame @ joint.at[0, 3].set(0.1)
        return frame

    return jax.jit(last_frame), jnp.linspace(0.0, 1.0, 40)


@probe(
    FUSION, issue="jax-ml/jax#37465",
    told="0.7.2 to 0.8.0: 1.4 times; in 0.11.0 16.2 ms without, 33.7 ms with YNNPACK's reductions",
)  # fmt: skip
def squares_of_differences() -> Any:
    """The sum of squared differences of neighbors in a 128x128x128 array."""
    return jax.jit(_roughness), jnp.ones((128, 128, 128)) * jnp.linspace(0.0, 1.0, 128)


@probe(FUSION, issue="jax-ml/jax#37465", told="0.5.0 to 0.5.3: 1.8 times; 0.7.2 to 0.8.0: 1.4 times")
def gradient_of_squares_of_differences() -> Any:
    """The gradient of the sum of squared differences of neighbors in a 128x128x128 array."""
    return jax.jit(jax.grad(_roughness)), jnp.ones((128, 128, 128)) * jnp.linspace(0.0, 1.0, 128)


def _roughness(x: jax.Array) -> Any:
    return sum(jnp.sum(jnp.square(jnp.diff(x, axis=axis))) for axis in range(3))


@probe(
    FUSION, "memory", issue="jax-ml/jax#30627",
    told="0.4.38 to 0.6.2: peak memory of a test from 4.4 to 10 GB on a CPU, in a product and its sum",
)  # fmt: skip
def memory_of_a_product_and_its_sum() -> Any:
    """Temporary memory of a Fourier sum of 256 modes at 4,096 points, which fusion need not store."""

    def at_points(modes: jax.Array, points: jax.Array) -> jax.Array:
        waves = jnp.exp(1j * points[:, None] * jnp.arange(modes.size))
        return jnp.sum(modes * waves, axis=-1).real

    return jax.jit(at_points), jnp.ones(256, jnp.complex64), jnp.linspace(0.0, 1.0, 4096)


@probe(
    FUSION, "compile", issue="openxla/xla#41173, jax-ml/jax#35646, jax-ml/jax#35958",
    told="0.9.0 to 0.9.1: compiling hangs or runs out of memory, for contractions of arrays of high rank",
)  # fmt: skip
def contraction_of_high_rank() -> Any:
    """Stages of the gradient of a contraction of 12 small arrays through arrays of rank 12."""

    def value(parts: list[jax.Array]) -> jax.Array:
        whole = parts[0]
        for part in parts[1:]:
            whole = jnp.tensordot(whole, part, ((whole.ndim - 1,), (0,)))
        return jnp.sum(jnp.tanh(whole) * whole.transpose()[..., :])

    shapes = [(2, 2), *[(2, 2, 2)] * 10, (2, 2)]
    return jax.jit(jax.grad(value)), [jnp.full(shape, 0.5) for shape in shapes]


@probe(
    "calls and start", "compile", issue="vllm-project/tpu-inference#2949",
    told="0.10.0 to 0.10.1: a unit test takes 64 s instead of 29 s before it runs; 45 s with 0.10.2",
)  # fmt: skip
def tracing_of_many_operations() -> Any:
    """Stages of a function of 1,200 operations of `jax.numpy` and 40 inner jitted functions."""

    @jax.jit
    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        h = jax.nn.gelu(x @ w)
        h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-6)
        return x + jnp.where(h > 0, h, 0.1 * h)

    def network(x: jax.Array, ws: list[jax.Array]) -> jax.Array:
        for w in ws:
            x = layer(x, w)
            for i in range(20):
                x = jnp.add(x, i)
        return x

    return jax.jit(network), jnp.ones((8, 16)), [jnp.ones((16, 16 + 0 * i)) for i in range(40)]


@probe(
    FLOAT64, issue="jax-ml/jax#36799",
    told="0.4.31 to 0.4.33: 10 times, in float64 only", x64=True,
)  # fmt: skip
def scan_over_a_small_float64_matrix() -> Any:
    """A `scan` of 2,000 turns, each a product of two 3x3 matrices in float64."""

    def turned(steps: jax.Array) -> jax.Array:
        def step(a: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return a @ (jnp.eye(3) + w * jnp.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 0]])), None

        return jax.lax.scan(step, jnp.eye(3), steps)[0]

    return jax.jit(turned), jnp.linspace(0.0, 1e-3, 2000)


@probe(
    FLOAT64, issue="jax-ml/jax#26145",
    told="0.4.31 to 0.5.0: 2.1 s to 11.3 s; 0.6.0: 2.4 s; after 0.6.2: 1.5 s, by a faster exp in float64",
    x64=True,
)  # fmt: skip
def exponential_in_float64() -> Any:
    """`exp` of 100,000 numbers in float64."""
    return jax.jit(jnp.exp), jnp.linspace(-5.0, 5.0, 100_000)


@probe(
    FLOAT64, issue="jax-ml/jax#36799",
    told="0.4.31 to 0.4.33: twice as long for many small systems, in float32 too",
)  # fmt: skip
def many_small_solves() -> Any:
    """Solutions of 1,000 linear systems of 4 unknowns, in float32."""
    a = jnp.eye(4) + 0.1 * jnp.ones((1000, 4, 4))
    return jax.jit(jax.vmap(jnp.linalg.solve)), a, jnp.ones((1000, 4))


def _difference(got: Any, expected: Any) -> str:
    """Return what is wrong with a result, "" if it is what is expected."""
    got, expected = np.asarray(got), np.asarray(expected)
    wrong = ~np.isclose(got, expected, rtol=1e-4, equal_nan=True)
    if not wrong.any():
        return ""
    first = tuple(np.argwhere(wrong)[0])
    return f"{wrong.sum()} of {wrong.size} values are wrong, e.g. {got[first]} for {expected[first]}"


def _norms(dtype: Any, rows: int) -> str:
    """Compare the squared norms of rows that a matrix leaves as they are with NumPy's."""
    x = np.zeros((rows, 3), dtype)
    x[:, 0] = np.arange(rows)
    same = jnp.eye(3, dtype=dtype)
    got = jax.jit(jax.vmap(lambda row: jnp.sum((same @ row) ** 2)))(x)
    return _difference(got, np.arange(rows, dtype=dtype) ** 2)


@probe(WRONG, "right", issue="jax-ml/jax#39103", told="0.10.2: the last of 32,769 rows is wrong in float32")
def products_of_rows() -> str:
    """Squared norms of 32,769 rows after a product with the identity, in float32."""
    return _norms(np.float32, 32_769)


@probe(WRONG, "right", issue="jax-ml/jax#39103", told="0.10.2: the last of 16,385 rows is wrong", x64=True)
def products_of_rows_in_float64() -> str:
    """Squared norms of 16,385 rows after a product with the identity, in float64."""
    return _norms(np.float64, 16_385)


@probe(
    WRONG, "right", issue="jax-ml/jax#39257, jax-ml/jax#40412",
    told="0.10.2 and 0.11.0 on x86-64: ended by SIGSEGV, or hangs",
)  # fmt: skip
def reduction_of_rank_7() -> str:
    """A product of two arrays of rank 7, and its sum over one axis."""
    shape = (3, 1, 2, 2, 8, 8, 8)
    u = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 7
    return _difference(jax.jit(lambda a, b: jnp.sum(a * b, axis=3))(u, u + 1), np.sum(u * (u + 1), axis=3))


@probe(
    WRONG, "right", issue="jax-ml/jax#29537",
    told="0.6.2: exp of NaN is 4.8e-310 in a jitted function in float64", x64=True,
)  # fmt: skip
def exponential_of_nan() -> str:
    """`exp` of NaN in a jitted function in float64."""
    return _difference(jax.jit(lambda x: jnp.exp(x * jnp.nan))(0.123), np.nan)


@probe(
    WRONG, "right", issue="openxla/xla#49176",
    told="September 2026: rows that are shifted in place and reshaped read what was just written",
)  # fmt: skip
def rows_shifted_in_place() -> str:
    """Rows of an array moved down by one, and reshaped."""

    def shifted(x: jax.Array) -> jax.Array:
        base = x + 1
        return jax.lax.dynamic_update_slice(base, base[:3], (1, 0, 0)).reshape((1, 4, 1))

    x = np.arange(4, dtype=np.int32).reshape(4, 1, 1)
    return _difference(jax.jit(shifted)(x).ravel(), [1, 1, 2, 3])
