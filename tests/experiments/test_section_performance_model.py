"""Section 8.0: the placed programs do the work that arithmetic says, and the rungs train the same network."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest

from jaxperf.chapter import cells

SCRIPT = Path(__file__).parents[2] / "experiments" / "performance_model.py"


@pytest.fixture(scope="module")
def section() -> ModuleType:
    """The names of the section, with toy sizes and without the cells that need a quiet machine."""
    return cells.load(SCRIPT, "--smoke")


def test_the_compiler_counts_the_flops_that_arithmetic_gives(section: ModuleType) -> None:
    side, batch = section.s.side, section.batch
    conv2 = 2 * 9 * 9 * 50 * 25 * 20  # outputs times kernel, one multiplication and one addition each
    conv1, dense = 2 * 26 * 26 * 20 * 9, 2 * (800 * 128 + 128 * 10)
    by_hand = [
        10 * 2 * 20**3,
        2 * (512 * 256 + 256 * 128 + 128 * 2),
        side**2,
        2 * side**3,
        batch * (3 * (conv1 + conv2 + dense) - conv1),  # nothing needs the gradient of the images
    ]
    counted = [flops for flops, _ in section.work.values()]
    assert counted == pytest.approx(by_hand, rel=0.03)


def test_the_bytes_of_one_pass_are_a_read_and_a_write(section: ModuleType) -> None:
    moved = list(section.work.values())[2][1]
    assert moved == 2 * section.x.nbytes


def test_ten_fused_lines_move_the_bytes_of_one(section: ModuleType) -> None:
    one, ten = (section.cost(jax.jit(lambda x, n=n: section.chain(x, n)), section.x) for n in (1, 10))
    assert ten[0] == 10 * one[0] and ten[1] == one[1]


def test_claims_that_need_no_clock_hold(section: ModuleType) -> None:
    verdicts = {claim.statement: claim.verdict for claim in section.s.result().claims}
    assert len(verdicts) == 3 and set(verdicts.values()) == {"holds"}


def test_the_two_rungs_that_change_the_arithmetic_learn_too(section: ModuleType) -> None:
    X, y = section.images, section.labels
    before = section.loss(section.params, jnp.asarray(X) / 255, y)
    for name in ("large batch", "bfloat16"):
        params, _ = section.rungs[name](section.fresh())
        assert section.loss(params, jnp.asarray(X) / 255, y) < before
