"""How much a step sums over devices relative to its compute: counted in its program, on any machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxperf.measure.traffic import collective_bytes
from jaxperf.models.convolution import native_convolutions
from jaxperf.parallel import Step
from jaxperf.report.words import quantity
from jaxperf.script import Story


@dataclass(frozen=True)
class Traffic:
    """What one step of a network sums over devices and computes.

    Attributes:
      network: its name.
      summed_bytes: bytes that each device contributes to the sums; they do not depend on the batch.
      flop_per_image: floating-point operations per image, forward, backward and update.
    """

    network: str
    summed_bytes: int
    flop_per_image: float

    def bytes_per_mflop(self, batch: int) -> float:
        """Bytes summed per million operations of a whole batch."""
        return self.summed_bytes / (self.flop_per_image * batch) * 1e6


def traffic_of(network: str, step: Step, batch: int) -> Traffic:
    """Count what a step of `batch` images sums and computes, from its compiled program.

    On one device nothing is summed; then the gradients' bytes are what two devices would sum. The operations
    are counted before the compiler's passes, since a GPU's library calls show none afterwards.
    """
    X, y = np.zeros((batch, 28, 28, 1), np.uint8), np.zeros(batch, np.int32)
    with native_convolutions():  # XLA counts no operations in a call to oneDNN
        lowered = step.programs["step"].lower(step.init(), *step.load(X, y))
    cost: Any = lowered.cost_analysis() or {}
    summed = sum(collective_bytes(lowered.compile().as_text() or "").values())
    k = len(step.devices)
    return Traffic(network, summed or _bytes_of_gradients(step), float(cost["flops"]) * k / batch)


def _bytes_of_gradients(step: Step) -> int:
    return sum(a.nbytes for a in jax.tree.leaves(step.model.params))


def compare_traffic(
    story: Story, small: Traffic, large: Traffic, *, batches: tuple[int, int], also: Sequence[int] = ()
) -> None:
    """Show the bytes summed per operation of two networks: in which does the compute hide the sums better?

    Facts: `bytes_per_mflop_small`, `bytes_per_mflop_large`.

    Args:
      story: is told the results.
      small: LeNet's.
      large: ResNet-18's.
      batches: the book's on two devices, of each.
      also: further batches of the large one.
    """
    story.heading("Bytes summed per operation")
    story.text(
        """Why should one network gain more than the other? The sums move as many bytes as there are
        parameters, while the compute grows with the batch. Their quotient needs no clock: it is counted in
        the compiled program, on any machine."""
    )
    rows = [(small, batches[0]), (large, batches[1]), *((large, n) for n in also)]
    story.grid(
        ("network", "batch", "summed", "computed", "bytes per million operations"),
        [
            (t.network, str(n), quantity(t.summed_bytes, "bytes"), quantity(t.flop_per_image * n, "FLOP"),
             f"{t.bytes_per_mflop(n):.3g}")
            for t, n in rows
        ],
        right=(1, 2, 3, 4),
    )  # fmt: skip
    less, more = small.bytes_per_mflop(batches[0]), large.bytes_per_mflop(batches[1])
    story.fact("bytes_per_mflop_small", less, words=f"bytes summed per million operations, {small.network}")
    story.fact("bytes_per_mflop_large", more, words=f"bytes summed per million operations, {large.network}")
    story.claim(
        book=f"{large.network} computes more for what it communicates than {small.network}",
        holds=more < less,
        predicted="under a third of the bytes per operation, at the book's batches",
        right=less / more > 3,
        observed=f"{less / more:.1f} times fewer bytes per operation",
    )
