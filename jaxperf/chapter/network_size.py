"""When does dispatch stop mattering? Op by op against compiled, over networks and batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxperf.chapter.tolerance import tolerance
from jaxperf.measure import interleaved, per_round
from jaxperf.models import MLP, LeNet, ResNet, hybridize
from jaxperf.result import Axis, Curve, Measurement, Ratio, both, ratio
from jaxperf.script import Story

WAYS = ("op by op", "hybridize")
Stages = Sequence[tuple[int, int]]  # channels, blocks
Size = tuple[int, int]  # width of the input, batch size


def two_ways(net: nnx.Module, x: jax.Array, words: str) -> dict[str, Callable[[], Any]]:
    """The network on `x`, op by op and compiled, for `interleaved`."""
    compiled = hybridize(net)
    return {f"{WAYS[0]}, {words}": lambda: net(x), f"{WAYS[1]}, {words}": lambda: compiled(x)}


def differ(a: Any, b: Any) -> tuple[float, bool]:
    """The largest difference between two outputs of about 1, and whether rounding explains it."""
    largest = float(np.abs(np.asarray(a) - np.asarray(b)).max())
    precision: str | None = getattr(jax.config, "jax_default_matmul_precision", None)  # unknown to mypy
    return largest, largest <= tolerance(jax.default_backend(), 1e-6, precision=precision)


def label(size: Size) -> str:
    """A size as a reader sees it."""
    return f"width {size[0]}, batch {size[1]}"


def over_sizes(sizes: Sequence[Size], *, rounds: int, seed: int) -> dict[str, Measurement]:
    """Seconds per call of the MLP at each size, both ways, all in the same rounds."""
    parts: dict[str, Callable[[], Any]] = {}
    for width, batch in sizes:
        net = MLP((width, width // 2, width // 4, 2), rngs=nnx.Rngs(seed))
        parts |= two_ways(net, jnp.ones((batch, width)), label((width, batch)))
    return interleaved(parts, count=rounds, wait="end")


def widths_and_batches(
    story: Story, widths: Sequence[int], batches: Sequence[int], rounds: int, seed: int
) -> Ratio:
    """Time the MLP of section 8.1.2 over widths and batch sizes.

    Facts: `eager_over_hybridize_smallest_net` and `eager_over_hybridize_largest_net`, of the smallest width
    and batch size and of the largest.

    Args:
      story: is told times, curves over the widths, facts and claims.
      widths: of the input; the hidden layers are half and a quarter as wide.
      batches: batch sizes.
      rounds: of the comparison.
      seed: of the parameters.

    Returns:
      How many times as fast the largest is compiled.
    """
    story.heading("8.1.2 The same over widths and batch sizes")
    story.text(
        """What compiling saves is mostly the time that Python and the dispatcher need per operation. That
        time does not depend on the size of the arrays. So a compiled network should gain most where there is
        little to compute, and next to nothing where arithmetic takes all the time."""
    )
    story.code(over_sizes)
    sizes = [(width, batch) for batch in sorted(set(batches)) for width in sorted(set(widths))]
    rows = over_sizes(sizes, rounds=rounds, seed=seed)
    gains = {size: ratio(*(rows[f"{way}, {label(size)}"] for way in WAYS)) for size in sizes}
    smallest, largest = sizes[0], sizes[-1]
    story.lines(
        "Seconds per call over the width",
        [_curve(way, batch, sizes, rows) for batch in sorted(set(batches)) for way in WAYS],
        x=Axis("width of the input"),
        y=Axis("per call", "s"),
        caption="One color per batch size; op by op is dashed.",
    )
    key = [f"{way}, {label(size)}" for size in dict.fromkeys((smallest, largest)) for way in WAYS]
    story.table(rows.values(), title="Seconds per call", key=key)
    story.grid(
        ("width", "batch", "op by op / hybridize"),
        [(str(width), str(batch), str(gain)) for (width, batch), gain in gains.items()],
        right=(0, 1, 2),
        detail=True,
    )
    story.fact("eager_over_hybridize_smallest_net", gains[smallest].median, words="gain, smallest net")
    story.fact("eager_over_hybridize_largest_net", gains[largest].median, words="gain, largest net")
    shrinks = gain_over(rows, label(smallest), label(largest))
    story.claim(
        ours="Compiling gains less, the more arithmetic a call holds",
        holds=shrinks.above(1),
        predicted="at least 5 times the gain for the smallest net than for the largest",
        right=shrinks.at_least(5),
        observed=f"{gains[smallest]} times for the smallest, {gains[largest]} times for the largest",
        cannot="" if smallest != largest else "one width and one batch size make one network",
    )
    never = both(*(gain.at_least(0.95) for gain in gains.values()))
    least = min(gains, key=lambda size: gains[size].median)
    story.claim(
        ours="The compiled network is never more than 5 % slower",
        holds=never,
        predicted="at every size as fast or faster",
        right=never,
        observed=f"least at {label(least)}: {gains[least]} times as fast",
    )
    return gains[largest]


def _curve(way: str, batch: int, sizes: Sequence[Size], rows: dict[str, Measurement]) -> Curve:
    points = [(float(w), rows[f"{way}, {label((w, b))}"].median) for w, b in sizes if b == batch]
    xs, ys = zip(*points)
    name = f"{way}, batch {batch}"
    return Curve(name, xs, ys, color=f"batch {batch}", dash="op by op" if way == WAYS[0] else "")


def gain_over(rows: dict[str, Measurement], first: str, second: str) -> Ratio:
    """How many times as much the first network gains as the second, round by round."""
    gains = [
        per_round(words, lambda a, b: a / b, *(rows[f"{way}, {words}"] for way in WAYS), unit="")
        for words in (first, second)
    ]
    return ratio(*gains)


def earlier_networks(story: Story, stages: Stages, batch: int, rounds: int, seed: int) -> None:
    """The book's third exercise: networks of earlier chapters, LeNet and ResNet-18.

    Facts: `outputs_max_abs_diff_NET`, `eager_over_hybridize_NET`, NET being lenet and resnet18.

    Args:
      story: is told times, facts and the claim.
      stages: channels and blocks of the ResNet; a small one if ResNet-18 would take too long.
      batch: images of 28 x 28 per call.
      rounds: of the comparison.
      seed: of parameters and images.
    """
    story.heading("8.1 Exercise 3: LeNet and ResNet-18, op by op and compiled")
    story.text(
        f"""The third exercise asks for networks of earlier chapters. LeNet on {batch} images is small, so
        most of its time op by op is dispatch. ResNet-18 computes for a hundred times as long; what it gains
        comes from fusing BatchNorm, the additions and relu, which otherwise read and write whole arrays one
        after another."""
    )
    story.code(two_ways)
    x = jax.random.uniform(jax.random.key(seed), (batch, 28, 28, 1))
    nets: dict[str, nnx.Module] = {
        "LeNet": LeNet(rngs=nnx.Rngs(seed)),
        "ResNet-18": ResNet(10, stages=stages, rngs=nnx.Rngs(seed)),
    }
    parts: dict[str, Callable[[], Any]] = {}
    for words, net in nets.items():
        net.eval()
        ways = two_ways(net, x, words)
        difference, _ = differ(*(call() for call in ways.values()))
        story.fact(f"outputs_max_abs_diff_{_fact(words)}", difference, words=f"outputs, {words}")
        parts |= ways
    rows = interleaved(parts, count=rounds, wait="end", items=batch)
    gains = {words: ratio(*(rows[f"{way}, {words}"] for way in WAYS)) for words in nets}
    story.table(rows.values(), title="Seconds per call", detail=True)
    for words, gain in gains.items():
        story.fact(f"eager_over_hybridize_{_fact(words)}", gain.median, words=f"gain, {words}")
    story.peers("LeNet forward")
    story.claim(
        ours="Networks of earlier chapters are faster compiled, too",
        holds=both(*(gain.above(1) for gain in gains.values())),
        predicted="both are faster, LeNet by the larger factor",
        right=both(*(gain.above(1) for gain in gains.values()), gain_over(rows, *nets).above(1)),
        observed="; ".join(f"{words} {gain} times as fast" for words, gain in gains.items()),
    )


def _fact(words: str) -> str:
    """A network's name as part of a fact's name."""
    return words.lower().replace("-", "")
