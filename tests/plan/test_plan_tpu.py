"""TPUs: their slices, the collectives of programs for eight v5e, and lower bounds of time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxperf.errors import JaxperfError
from jaxperf.plan import deviceless, hlo, programs, tpu
from jaxperf.plan.arguments import Placed
from jaxperf.plan.cards import TPUS, find_device
from jaxperf.plan.collectives import collectives
from jaxperf.plan.planning import plan, plan_of

V5E, V5P = TPUS["v5e"], TPUS["v5p"]
VERSIONS = ("jax_0_10", "jax_0_12")
W = 4096 * 4096  # elements of one of the two parameters of `small_steps.gathered`


def program(version: str) -> hlo.Module:
    return hlo.parse((Path(__file__).parent / "programs" / f"tpu_gathered_{version}.hlo").read_text())


def test_names() -> None:
    assert list(TPUS) == ["v5e", "v5p", "v6e"]
    assert find_device("TPU v5e") is find_device("v5e") is V5E


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("v5e", 3, "Google lists no slice of v5e with 3 chips; take 1 or 4"),
        ("v5e", 512, "with 512 chips; take 256"),
        ("v6e", 257, "take 256"),
        ("v5p", 8961, "take 8960"),
        ("v5p", 0, "take 1"),
    ],
)
def test_slices_that_do_not_exist(name: str, count: int, message: str) -> None:
    with pytest.raises(JaxperfError, match=message):
        TPUS[name].slice_of(count)


def test_links_of_a_chip() -> None:
    """An axis that closes to a ring gives each chip two links; its ends have one otherwise."""
    assert V5E.slice_of(64) == "8x8" and V5E.links(64) == 2 * 2 * 7 / 8
    assert V5E.links(256) == 4 and V5E.links(128) == 2 + 2 * 7 / 8
    assert V5P.links(64) == 6 and V5P.links(32) == 1 + 2 * 2 * 3 / 4


@pytest.mark.parametrize("version", VERSIONS)
def test_collectives(version: str) -> None:
    """Both parameters are gathered, one of them in parts, beside three kernels; it counts once."""
    large = [c for c in collectives(program(version), 8) if c.bytes > 2**20]
    assert [(c.kind, c.bytes, c.dtype, c.group_size) for c in large] == [
        ("all-gather", 2 * W, "bf16", 8),
        ("all-gather", 2 * W, "bf16", 8),
        ("reduce-scatter", 4 * W, "f32", 8),
    ]
    assert sorted(c.asynchronous for c in large) == [False, False, True]
    assert large[-1].source == "small_steps.py:58"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_step_takes_at_least(version: str) -> None:
    module = program(version)
    work = tpu.least_work(module, V5E)
    assert work.flops == 5 * 2 * 8 * W  # each device has eight examples
    assert work.arithmetic_s == work.flops / 197e12
    # An eighth of both parameters is read and written, the first read twice; the rest stays on the chip.
    assert work.bytes == pytest.approx((2 * 2 + 1) * 4 * W / 8, rel=0.01)
    assert work.memory_s == work.bytes / 819e9
    # In 2 x 4 chips a chip has 1 and 1.5 links, of 50 GB/s each.
    gathered, scattered = 2 * 7 / 8 * 2 * W, 7 / 8 * 4 * W
    sent = sum(tpu.collective_s(V5E, each, 8) for each in collectives(module, 8))
    assert sent == pytest.approx((gathered + scattered) / (2.5 * 50e9), rel=0.02)


@pytest.mark.parametrize(
    ("shapes", "attributes", "flops"),
    [
        # a border of zeros: in each axis 2 + 3 + 2 of 9 places hold an element
        (
            ("1,3,3,4", "3,3,4,5", "1,3,3,5"),
            "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
            49 * 20,
        ),
        # two products of 3 x 4 times 4 x 5, as libtpu writes them
        (
            ("2,3,4", "2,4,5", "2,3,5"),
            "window={size=2 pad=1_1 lhs_dilate=2}, dim_labels=0bf_0io->0bf",
            2 * 60,
        ),
        (("3,4", "4,5", "3,5"), "dim_labels=bf_io->bf", 60),
    ],
)
def test_zeros_are_no_arithmetic(shapes: tuple[str, str, str], attributes: str, flops: int) -> None:
    x, w, y = (f"f32[{shape}]" for shape in shapes)
    text = f"""HloModule jit_f

ENTRY %main (x: {x}, w: {w}) -> {y} {{
  %x = {x} parameter(0)
  %w = {w} parameter(1)
  ROOT %y = {y} convolution(%x, %w), {attributes}
}}
"""
    assert tpu.least_work(hlo.parse(text), V5E).flops == 2 * flops


def test_the_report_says_at_least() -> None:
    mesh = Mesh(np.array(jax.devices("cpu")[:8]), ("data",))
    memory = SimpleNamespace(temp_size_in_bytes=20 * 10**9)
    compiled = programs.Program(program("jax_0_12"), memory, 1.0)
    step_plan = plan_of(V5E, [Placed(None, (), {}, mesh, 64, (1,), 0, True)], [compiled])
    (size,) = step_plan.sizes
    assert size.at_least and size.bound == "links" and size.step_s == size.step_low_s and not size.fits
    assert {advice.kind for advice in size.advice} == {"does not fit", "parameters gathered"}
    text = str(step_plan)
    assert "A step takes at least" in text and "slices 2x4" in text
    assert "from data sheets, not checked against a measurement" in text and "checked:" not in text
    assert "efficiency" not in text and "waited for" not in text


def test_no_libtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deviceless, "_there", lambda module: False)
    with pytest.raises(JaxperfError, match=r'needs libtpu, .* install it: pip install "jax\[tpu\]==\d'):
        plan(jax.jit(jnp.sin), jnp.zeros(8), device="v5e")
