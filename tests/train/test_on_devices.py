"""Images that stay on the devices: the training of the host's batches, and nothing is sent."""

import dataclasses
import re
from typing import Any

import jax
import numpy as np
import pytest
import trainings

from jaxperf.errors import JaxperfError
from jaxperf.measure.compile_log import nothing_compiles
from jaxperf.measure.compile_together import compile_lowered
from jaxperf.train import train
from jaxperf.train.on_devices import DeviceFeed, feed_of

DATA = trainings.pictures(n=12)


@pytest.mark.parametrize(("way", "k"), [("jit", 2), ("shard_map", 1)])
def test_a_training_from_the_devices_has_the_bits_of_one_from_the_host(way: Any, k: int) -> None:
    step = trainings.step_of(way, k=k)
    expected = trainings.trained(step, feed="host")
    for feed in ("step", "epoch"):
        trainings.assert_same(trainings.trained(step, feed=feed), expected)


@pytest.mark.parametrize(("way", "scan"), [("jit", False), ("shard_map", True)])
def test_an_epoch_is_one_program_and_nothing_is_copied_while_it_runs(way: Any, scan: bool) -> None:
    step = trainings.step_of(way)
    feed = DeviceFeed(step, DATA, batch_size=4, updates=3, scan=scan)
    state = step.init()
    compile_lowered(feed.lower(state))
    calls = feed.calls(seed=0, epoch=1, start=0)
    metrics: list[Any] = []
    first = next(calls)  # the order of the images has been copied
    with nothing_compiles("an epoch"), jax.transfer_guard("disallow_explicit"):
        for call in (first, *calls):
            state, row = call(state)
            metrics.append(row["loss"])
        jax.block_until_ready(state)
    assert [np.shape(loss) for loss in metrics] == ([(3,)] if scan else 3 * [()])


@pytest.mark.parametrize("scan", [False, True])
def test_the_program_gathers_each_devices_rows_there(scan: bool) -> None:
    """Bytes are gathered, and the devices send each other nothing but the sums of the gradients."""
    step = trainings.step_of()
    feed = DeviceFeed(step, DATA, batch_size=4, updates=3, scan=scan)
    [lowered] = feed.lower(step.init())
    text = lowered.compile().as_text()
    assert "all-reduce" in text
    assert re.search(r"u8\[2,(1,)?2,2,1\]\S* gather\(", text)  # 2 of 4 images on each of 2 devices
    assert not [word for word in ("all-gather", "all-to-all", "infeed", "outfeed") if f" {word}(" in text]


def test_what_auto_stands_for() -> None:
    class Gpu:
        platform, process_index = "gpu", 0

    step = trainings.step_of()
    gpu = dataclasses.replace(step, devices=(Gpu(),))
    two_processes = dataclasses.replace(step, devices=(Gpu(), type("Other", (Gpu,), {"process_index": 1})()))
    assert feed_of("auto", step) == "step"
    assert (feed_of("auto", gpu), feed_of("auto", gpu, saves=True)) == ("epoch", "step")
    assert feed_of("auto", two_processes) == feed_of("auto", trainings.step_of("pmap")) == "host"
    with pytest.raises(
        JaxperfError, match="feed 'epoch' needs the way 'jit' or 'shard_map' and a single pro"
    ):
        feed_of("epoch", trainings.step_of("manual"))
    with pytest.raises(JaxperfError, match="'disk' is none of auto, host, step, epoch"):
        train(step, DATA, epochs=1, batch_size=4, updates=1, feed="disk")  # type: ignore[arg-type]


def test_a_scanned_epoch_that_is_resumed_and_one_with_an_infinite_loss(tmp_path: Any) -> None:
    """A loss inside the scan is reported with its own step."""
    step = trainings.step_of()
    broken = dataclasses.replace(step.model, params={"W": step.model.params["W"] * np.inf})
    with pytest.raises(JaxperfError, match="the loss is nan at step 1, no loss before it was finite"):
        trainings.trained(step, feed="epoch", state=step.init(broken))
    with pytest.raises(trainings.InterruptedTrainingError):
        trainings.trained(step, tmp_path, before=trainings.at(3), feed="step")
    trainings.assert_same(trainings.trained(step, tmp_path, feed="epoch"), trainings.trained(step))


def test_images_that_do_not_fit_are_refused_with_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def device_put(*args: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")

    step = trainings.step_of()
    monkeypatch.setattr("jaxperf.train.on_devices.jax.device_put", device_put)
    message = r'^12 images, 48 bytes, do not fit .*; keep them on the host \(feed="host"\)$'
    with pytest.raises(JaxperfError, match=message):
        DeviceFeed(step, DATA, batch_size=4, updates=1, scan=False)
