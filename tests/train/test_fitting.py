"""A batch that memory cannot hold: XLA's own refusal, told with the batch size and with one that fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from trainings import BATCH, step_of, trained

from jaxperf.errors import JaxperfError
from jaxperf.train.fitting import fitting

TOO_MANY = 10**14  # float32 values; no machine has 400 TB


def step(n: int, *, most: int) -> jax.Array:
    """Ask for more memory than there is for more than `most` images."""
    return jnp.ones((TOO_MANY if n > most else n,))


def test_the_batch_that_does_not_fit_is_named_with_the_largest_tried_that_does() -> None:
    tried: list[int] = []
    for batch, most, devices, says in (
        (256, 64, 1, "64 fit, so give --batch-size 64"),
        (256, 100, 1, "64 fit, so give --batch-size 64"),
        (96, 30, 8, "24 fit, so give --batch-size 24"),
        (40, 25, 8, "16 fit, so give --batch-size 16"),  # 20 does not divide
        (256, 0, 1, "nor do 1; use more devices"),
        (8, 0, 8, "nor do 8; use more devices"),
    ):

        def attempt(n: int, most: int = most) -> Any:
            tried.append(n)
            return step(n, most=most)

        with (
            pytest.raises(
                JaxperfError, match=f"^a batch of {batch} images does not fit into memory"
            ) as caught,
            fitting(batch, attempt, jax.devices("cpu")[:1] * devices),
        ):
            attempt(batch)
        assert str(caught.value).endswith(says)
        assert "RESOURCE_EXHAUSTED: Out of memory allocating 400000000000000 bytes" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert all(n % devices == 0 for n in tried)
        tried.clear()


def test_a_jitted_function_that_was_called_before_tells_it_as_a_value_error() -> None:
    with (
        pytest.raises(JaxperfError, match="4 fit, so give --batch-size 4"),
        fitting(8, jnp.ones, jax.devices()[:1]),
    ):
        raise ValueError(OF_A_GPU)


def test_a_step_that_fits_or_fails_otherwise_is_left_alone() -> None:
    def never(n: int) -> None:
        pytest.fail("nothing is to be tried")

    with fitting(256, never, jax.devices()):
        step(256, most=256)
    broken = jax.errors.JaxRuntimeError("INTERNAL: broken"), ValueError("INTERNAL: broken")
    for error in (ZeroDivisionError("no memory"), *broken):
        with pytest.raises(type(error)), fitting(256, never, jax.devices()):
            raise error
    wrong = jax.errors.JaxRuntimeError("INTERNAL: broken")

    def breaks(n: int) -> None:
        raise wrong

    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), fitting(256, breaks, jax.devices()):
        step(256, most=0)


# What XLA's allocator on a GPU says; a table of allocations follows.
OF_A_GPU = (
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5033164800 bytes.\n"
    "BufferAssignment OOM Debugging.\nBufferAssignment stats:\n"
)


def too_much_for(most: int, step: Callable[..., Any], images: Callable[..., int]) -> Callable[..., Any]:
    """A step that finds no memory for more than `most` images, of which `images(*args)` gives the number."""

    def call(*args: Any) -> Any:
        if images(*args) > most:
            raise jax.errors.JaxRuntimeError(OF_A_GPU)
        return step(*args)

    return call


def of_shares(state: Any, shares: Any) -> int:
    return len(jax.tree.leaves(shares)[-1])  # jit's labels, of all devices


@pytest.mark.parametrize("where", ["compile", "run"])
def test_a_training_whose_step_finds_no_memory_says_what_fits(where: str) -> None:
    step = step_of()
    tight = {"run": too_much_for(2, step.run, of_shares)}
    if where == "compile":
        tight["compile"] = too_much_for(2, step.compile, of_shares)
    with pytest.raises(JaxperfError) as caught:
        trained(dataclasses.replace(step, **tight))
    assert str(caught.value) == (
        f"a batch of {BATCH} images does not fit into memory ({OF_A_GPU.splitlines()[0]}); "
        "2 fit, so give --batch-size 2"
    )
