"""What a program's text says about bfloat16 that becomes float32, and about products in float32 on a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.windows import ExecutedProgram
from jaxperf.watch.rules import programs

NARROW, WIDE = jnp.ones((256, 256), jnp.bfloat16), jnp.ones((256, 256), jnp.float32)


def product(x: jax.Array, y: jax.Array) -> jax.Array:
    return x @ y  # product


def scaled(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.tanh(x * y)  # scaled


def on_purpose(x: jax.Array, y: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) @ y


def mean(x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.nn.softmax(x).mean() + y.sum()


@pytest.mark.parametrize(
    ("function", "other", "marks"),
    [
        (product, WIDE, ["# product"]),
        (scaled, WIDE, ["# scaled"]),
        (product, NARROW, []),
        (scaled, NARROW, []),
        (on_purpose, WIDE, []),
        (mean, WIDE, []),
    ],
)
def test_an_operator_that_widens_bfloat16_is_located(
    function: Callable[..., jax.Array], other: jax.Array, marks: list[str]
) -> None:
    text = jax.jit(function).lower(NARROW, other).compile().as_text()
    assert text is not None
    lines = programs.widened_lines(Facts("f", "cpu", 1, 1, text=text))
    assert [at.source.partition("  ")[2] for at in lines] == marks
    assert all(size == NARROW.nbytes for size in lines.values())


PRODUCT = """HloModule jit_step

ENTRY %main (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0} parameter(0)
  %gemm.1 = (f32[8,8]{1,0}, s8[64]{0}) custom-call(%x, %x), custom_call_target="__cublas$gemm", \
backend_config={"precision_config":{"operand_precision":["NAME","NAME"]}}
  ROOT %add.1 = f32[8,8]{1,0} add(%x, %x)
}
"""


@pytest.mark.parametrize(
    ("name", "platform", "dtype", "share", "message"),
    [
        (
            "HIGHEST",
            "gpu",
            "f32",
            0.9,
            "90% of step's time goes to products of float32 matrices (a.py:3) at the highest",
        ),
        ("DEFAULT", "gpu", "f32", 0.9, "in bfloat16 they take half of the bytes"),
        ("HIGHEST", "gpu", "f32", 0.1, ""),
        ("HIGHEST", "cpu", "f32", 0.9, ""),
        ("DEFAULT", "gpu", "bf16", 0.9, ""),
    ],
)
def test_products_of_float32_that_take_a_gpus_time_are_named(
    name: str, platform: str, dtype: str, share: float, message: str
) -> None:
    text = PRODUCT.replace("NAME", name).replace("%x = f32", f"%x = {dtype}")
    ops = defaultdict(list, {("gpu 0", "gemm.1"): [share], ("gpu 0", "add.1"): [1 - share]})
    notes = list(
        programs.precision_notes(
            Facts("step", platform, 1, 1, text=text), Compiled("step", Place("a.py", 3)),
            ExecutedProgram("step", ops=ops),
        )
    )  # fmt: skip
    assert len(notes) == bool(message) and all(message in note for note in notes)
