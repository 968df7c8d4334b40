"""Where does dispatch stop mattering? Op by op against hybridized, over networks and batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxperf.measure import Series, measure
from jaxperf.models import MLP, LeNet, hybridize, resnet18
from jaxperf.script import Story


def widths_and_batches(story: Story, *, widths: Sequence[int], batches: Sequence[int], seed: int) -> None:
    """The MLP of section 8.1.2 over widths and batch sizes.

    Facts: `eager_over_hybridize_smallest_net` and `eager_over_hybridize_largest_net`, of the first width and
    batch size and of the last.

    Args:
      story: is told times, curves over the widths, facts and the claim.
      widths: of the input; the hidden layers have a half and a quarter of it.
      batches: batch sizes.
      seed: of the parameters.
    """
    story.heading("The same over widths and batch sizes")
    options: dict[str, Any] = {"wait": "end", "budget_s": 0.2, "warmup_s": 0.02, "min_values": 5}
    rows = []
    for batch in batches:
        for width in widths:
            net = MLP((width, width // 2, width // 4, 2), rngs=nnx.Rngs(seed))
            x = jnp.ones((batch, width))
            label = f"width {width}, batch {batch}"
            rows.append(measure(net, x, name=f"eager, {label}", **options))
            rows.append(measure(hybridize(net), x, name=f"hybridize, {label}", **options))
        for way, offset in (("eager", 0), ("hybridize", 1)):
            medians = [m.median for m in rows[-2 * len(widths) :][offset::2]]
            name = f"{way}, batch {batch}"
            story.curve(Series(name, tuple(map(float, widths)), tuple(medians), "width", "s"))
    story.measured(*rows)
    ratios = [e.median / h.median for e, h in zip(rows[::2], rows[1::2])]
    story.fact("eager_over_hybridize_smallest_net", ratios[0])
    story.fact("eager_over_hybridize_largest_net", ratios[-1])
    story.claim(
        "Compiling matters where dispatch does: less, the more arithmetic a call holds",
        predicted="a smaller ratio for the largest net than for the smallest",
        observed=f"{ratios[0]:.1f} times and {ratios[-1]:.1f} times",
        held=ratios[-1] < ratios[0],
    )


def earlier_networks(story: Story, *, batch: int, seed: int) -> None:
    """The book's third exercise: networks of earlier chapters, LeNet and ResNet-18.

    Facts: `outputs_max_abs_diff/NET`, `eager_over_hybridize/NET`.

    Args:
      story: is told times and facts.
      batch: images of 28 x 28 in a call.
      seed: of parameters and images.
    """
    story.heading("Exercise: LeNet and ResNet-18, op by op and compiled")
    x = jax.random.uniform(jax.random.key(seed), (batch, 28, 28, 1))
    options: dict[str, Any] = {"budget_s": 0.5, "min_values": 3, "warmup_calls": 1, "items": batch}
    for name, net in (
        ("LeNet", LeNet(rngs=nnx.Rngs(seed))),
        ("ResNet-18", resnet18(10, rngs=nnx.Rngs(seed))),
    ):
        net.eval()
        compiled = hybridize(net)
        difference = float(jnp.abs(net(x) - compiled(x)).max())
        rows = [
            measure(net, x, name=f"eager, {name}, batch {batch}", **options),
            measure(compiled, x, name=f"hybridize, {name}, batch {batch}", **options),
        ]
        story.measured(*rows, base=rows[1].name)
        story.fact(f"outputs_max_abs_diff/{name}", difference)
        story.fact(f"eager_over_hybridize/{name}", rows[0].median / rows[1].median)
