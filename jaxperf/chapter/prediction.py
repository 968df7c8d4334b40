"""Exercise of section 8.4: predict on all devices, with the accuracy of one device and the time measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxperf.chapter.training import plural
from jaxperf.data import FashionMNIST
from jaxperf.measure import interleaved
from jaxperf.parallel import first_devices
from jaxperf.result import ratio
from jaxperf.script import Story
from jaxperf.train import Epoch, Evaluator


def predicting_on_all_devices(
    story: Story,
    apply: Callable[..., Any],
    trained: Mapping[int, Sequence[tuple[Epoch, Any]]],
    data: FashionMNIST,
    *,
    rounds: int,
) -> None:
    """Evaluate trained parameters on one device and on all, in turns.

    Facts: `test_accuracy_DEVICES`.

    Args:
      story: is told the results.
      apply: `apply(params, X)` gives logits.
      trained: by number of devices, the epochs and the parameters after each; the last of all devices count.
      data: its test images are predicted.
      rounds: how often each has its turn.
    """
    story.heading("Exercise: predicting on all devices")
    story.text(
        """To predict needs no sums over devices but one: how many images each device got right. The batch is
        split as in training, and an image that only fills up the last batch must not count."""
    )
    story.code(Evaluator)
    counts = sorted({1, story.devices})
    _, params = trained[story.devices][-1]
    size = 256 // story.devices * story.devices
    evaluators = {k: Evaluator(apply, first_devices(k), batch_size=size) for k in counts}
    found = {k: e.accuracy(params, data.test_images, data.test_labels) for k, e in evaluators.items()}
    for k, accuracy in found.items():
        story.fact(
            f"test_accuracy_{k}", accuracy, words=f"test accuracy of trained weights, predicted on {k}"
        )

    def predict(evaluator: Evaluator) -> Callable[[], Any]:
        return lambda: np.float64(evaluator.accuracy(params, data.test_images, data.test_labels))

    names = {k: plural(k) for k in counts}
    rows = interleaved(
        {names[k]: predict(e) for k, e in evaluators.items()}, count=rounds, items=len(data.test_labels)
    )
    story.table(rows.values(), base=names[1], title=f"Predicting {len(data.test_labels):,} images")
    alone = "only one device here" if len(counts) == 1 else ""
    equal = len(set(found.values())) == 1
    story.claim(
        ours="Predicting on all devices gives the accuracy of one",
        holds=equal,
        predicted="the same number of images is right",
        right=equal,
        observed=" and ".join(f"{a:.4f} on {k}" for k, a in found.items()),
        cannot=alone,
    )
    if alone:
        return
    gain = ratio(rows[names[1]], rows[names[counts[-1]]])
    fake = story.environment.devices_are_fake
    story.claim(
        ours="Predicting gains more from a second device than LeNet's training, since it has no sums",
        holds=gain.above(1.2),
        predicted="more than 1.2 times as fast",
        right=gain.above(1.2),
        observed=f"{gain} times as fast",
        cannot=f"the devices are fake and share this host's cores; here {gain} times as fast" if fake else "",
    )
