"""Using a GPU: which devices are there, where are arrays and parameters, and what crosses between devices?

Prediction: an operation runs where its operands are; operands on different devices are an error and not a
silent copy; a network computes where its parameters are.

    python experiments/use_gpu.py
    python experiments/use_gpu.py --devices 4 --platform cpu
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.exits import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

from dataclasses import dataclass
from typing import Annotated

from jaxperf import script
from jaxperf.flags import at_least


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    seed: int = 0  # seed of arrays and parameters
    megabytes: Annotated[int, at_least(1)] = 64  # size of the array that is copied between devices
    rounds: Annotated[int, at_least(1)] = 9  # rounds of each comparison

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(megabytes=1, rounds=6)


FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None  # before JAX starts

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxperf.doctor.driver import ask_driver
from jaxperf.errors import JaxperfError
from jaxperf.measure import block, interleaved
from jaxperf.parallel import set_cpu_devices, try_all_gpus, try_gpu
from jaxperf.report.words import quantity
from jaxperf.result import ratio


def show(device: jax.Device) -> str:
    """A device as "cpu:1"."""
    return f"{device.platform}:{device.id}"


def where(tree: Any) -> list[str]:
    """The devices that hold the arrays of `tree`, each named once."""
    return sorted({show(d) for leaf in jax.tree.leaves(tree) for d in leaf.devices()})


def two_devices() -> tuple[jax.Device, jax.Device]:
    """Two different devices: of one kind where there are two, else a GPU and the CPU.

    Raises:
      JaxperfError: there is only one.
    """
    devices = list(dict.fromkeys([*jax.devices(), *jax.devices("cpu")]))
    if len(devices) < 2:
        raise JaxperfError("1 device here, this section shows two; use --devices 2")
    return devices[0], devices[1]


def state_of_the_gpus(story: script.Story) -> None:
    """Show what `nvidia-smi` shows, through the same library."""
    story.heading("The state of the GPUs")
    story.text(
        """Before you train on a GPU, look at it. `nvidia-smi` shows the model, the memory in use and how
        busy it is; a GPU that stays below half busy usually waits for something else, such as small batches
        or the input pipeline. JAX asks the same driver library."""
    )
    driver = ask_driver()
    if driver.missing:
        story.say("no NVIDIA driver on this machine: JAX computes on the CPU")
    elif driver.trouble:
        story.say(f"the NVIDIA driver does not answer: {driver.trouble}")
    for i, gpu in enumerate(driver.gpus):
        story.say(
            f"GPU {i}: {gpu.name}, {quantity(gpu.used_bytes, 'bytes')} of "
            f"{quantity(gpu.total_bytes, 'bytes')} in use, {gpu.busy_percent} % busy, {gpu.power_w:.0f} W, "
            f"{gpu.temperature_c} degrees; driver {driver.version}"
        )
    story.fact("gpu_count", len(driver.gpus), words="GPUs that the driver knows")


def names_with_a_fallback(story: script.Story) -> None:
    """Show that `try_gpu` and `try_all_gpus` work on any machine."""
    story.heading("Naming devices")
    story.text(
        """A program should name its device once and still run on a laptop. The book's helpers `try_gpu` and
        `try_all_gpus` fall back to the CPU where there is no such GPU."""
    )
    story.habit(
        gluon="ctx = mx.gpu(0)\nx = nd.ones((2, 3), ctx=ctx)",
        jax="device = try_gpu(0)\nx = jax.device_put(jnp.ones((2, 3)), device)",
        remark="MXNet calls it a context. JAX calls it a device, and arrays go to the first GPU by default.",
    )
    story.code(try_gpu, try_all_gpus)
    with story.output():
        print(f"try_gpu() = {show(try_gpu())}, try_gpu(10) = {show(try_gpu(10))}")
        print(f"try_all_gpus() = [{', '.join(map(show, try_all_gpus()))}]")
        print(f"all devices: {', '.join(map(show, jax.devices()))}")
    story.text(
        """A CPU can be split into several devices, which is how this chapter checks programs for many
        devices on a laptop. The number must be chosen before JAX starts."""
    )
    try:
        set_cpu_devices(len(jax.devices("cpu")) + 1)
        said = "still possible"
    except JaxperfError as e:
        said = str(e)
    story.say(f"one more CPU device now: {said}")
    story.fact("too_late_is_said", said.startswith("too late"), words="a late change is refused")


def arrays_and_devices(story: script.Story, config: Config) -> None:
    """Put arrays on devices, and let two devices meet in one operation."""
    story.heading("Arrays on devices")
    story.text(
        """An array is on one device, and an operation on it runs there. Copies between devices are slow, so
        JAX never makes one behind your back: if operands that you placed yourself are on different devices,
        the operation is an error."""
    )
    first, second = two_devices()
    X = jax.device_put(jnp.ones((2, 3)), first)
    Y = jax.device_put(jax.random.uniform(jax.random.key(config.seed), (2, 3)), second)
    with story.output():
        print(f"X is on {where(X)[0]}, Y on {where(Y)[0]}; X + 1 is computed on {where(X + 1)[0]}")
    try:
        X + Y
        error, message = "", "no error"
    except ValueError as e:
        error, message = type(e).__name__, str(e).splitlines()[0]
    Z = jax.device_put(X, second)
    again = jax.device_put(Z, second)
    with story.output():
        print(f"X + Y: {error or 'works'}: {message}")
        print(f"Z = jax.device_put(X, {show(second)}); Z + Y is computed on {where(Z + Y)[0]}")
        print(
            "device_put to where Z is already copies nothing:",
            again.unsafe_buffer_pointer() == Z.unsafe_buffer_pointer(),
        )
    story.fact("mixed_devices_error", error, words="error of an operation on two devices")
    story.claim(
        book="Operands must be on the same device",
        holds=bool(error),
        predicted="an error, and after a copy the sum is computed where both operands are",
        right=bool(error) and where(Z + Y) == [show(second)],
        observed=f"{error or 'no error'}; then computed on {where(Z + Y)[0]}",
    )


def price_of_a_copy(story: script.Story, config: Config) -> None:
    """Time a copy next to reading the array where it is."""
    story.heading("What a copy costs")
    first, second = two_devices()
    X = block(jax.device_put(jnp.ones((config.megabytes, 250_000)), first))
    story.text(
        f"""Moving an array costs at least as much as reading it. Here {quantity(X.nbytes, "bytes")} of
        float32 go to the other device, next to their sum where they are. If a device's memory is short, use
        a smaller network or a smaller batch, or preprocess on the CPU, rather than move data back and
        forth."""
    )
    total = jax.jit(jnp.sum)
    rows = interleaved(
        {
            "copy to the other device": lambda: jax.device_put(X, second, may_alias=False),
            "sum where it is": lambda: total(X),
        },
        count=config.rounds,
    )
    copied, summed = rows.values()
    story.table(rows.values(), base=summed.name)
    found = ratio(copied, summed)
    story.fact("copy_bytes_per_s", X.nbytes / copied.median, unit="bytes/s", words="speed of the copy")
    story.claim(
        book="Do not move data between devices more often than you must",
        holds=found.above(1),
        predicted="a copy takes longer than a sum over the same array",
        right=found.above(1),
        observed=f"{found} times as long",
    )
    if story.environment.devices_are_fake:
        story.note("both devices are this host's memory: the copy's speed is not that of a bus or a GPU")


def networks_and_devices(story: script.Story, config: Config) -> None:
    """Put parameters on a device; the network computes there."""
    story.heading("A network on a device")
    story.text(
        """A network has no device of its own. It computes where its parameters are, so moving the
        parameters moves the network."""
    )
    story.habit(
        gluon="net.initialize(ctx=mx.gpu(0))",
        jax="nnx.update(net, jax.device_put(nnx.state(net), try_gpu(0)))",
    )
    _, device = two_devices()
    net = nnx.Linear(3, 1, rngs=nnx.Rngs(config.seed))
    nnx.update(net, jax.device_put(nnx.state(net), device))
    x = jax.device_put(jnp.ones((2, 3)), device)
    found = where(nnx.state(net)), where(net(x))
    story.claim(
        book="A network computes where its parameters are",
        holds=found[0] == found[1] == [show(device)],
        predicted=f"parameters and output on {show(device)}",
        right=found[0] == found[1] == [show(device)],
        observed=f"parameters on {', '.join(found[0])}, output on {', '.join(found[1])}",
    )


def main(config: Config, story: script.Story) -> None:
    """Look, name, place, and see what goes wrong."""
    story.part(state_of_the_gpus)
    story.part(names_with_a_fallback)
    story.part(arrays_and_devices, config)
    story.part(price_of_a_copy, config)
    story.part(networks_and_devices, config)


if __name__ == "__main__":
    script.run(main, FLAGS)
