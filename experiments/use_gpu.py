"""Using a GPU: which devices there are, where arrays and parameters lie, what happens between devices.

The PyTorch retelling of the chapter begins here: look at the GPU (`nvidia-smi`), name it with a fall-back
(`try_gpu`), put arrays and networks on it, and see the error when an operation's operands lie apart.

Prediction: an operation runs where its operands lie; operands on different devices are an error and not a
silent copy; a network computes where its parameters are.

    python experiments/use_gpu.py
    python experiments/use_gpu.py --devices 4 --platform cpu

On 2 cores of an AMD EPYC, Python 3.11.7, JAX 0.10.2, no GPU, it printed, among the rest:

no NVIDIA driver on this machine: nothing for nvidia-smi to show; JAX computes on the CPU
try_gpu() = cpu:0, try_gpu(10) = cpu:0
X on cpu:0, Y on cpu:1: X + Y raises ValueError
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxperf import script
from jaxperf.errors import JaxperfError


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    seed: int = 0
    """Seed of arrays and parameters."""
    megabytes: int = 64
    """Size of the array that is copied between devices."""

    def __post_init__(self) -> None:
        if self.megabytes < 1:
            raise JaxperfError(f"--megabytes is {self.megabytes}; give at least 1")

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(megabytes=1)


FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None  # before JAX starts

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxperf.measure import measure
from jaxperf.measure.driver import ask_driver
from jaxperf.parallel import set_cpu_devices, try_all_gpus, try_gpu
from jaxperf.report.text import quantity


def show(device: jax.Device) -> str:
    """A device as "cpu:1"."""
    return f"{device.platform}:{device.id}"


def where(tree: Any) -> list[str]:
    """The devices on which the arrays of `tree` lie, each named once."""
    return sorted({show(d) for leaf in jax.tree.leaves(tree) for d in leaf.devices()})


def two_devices() -> tuple[jax.Device, jax.Device]:
    """Two devices that are not the same: of one kind where there are two, else a GPU and the CPU.

    Raises:
      JaxperfError: there is only one.
    """
    devices = list(dict.fromkeys([*jax.devices(), *jax.devices("cpu")]))
    if len(devices) < 2:
        raise JaxperfError("1 device here, this section shows two; use --devices 2")
    return devices[0], devices[1]


def state_of_the_gpus(story: script.Story) -> None:
    """What `nvidia-smi` shows, through the same library."""
    story.heading("The state of the GPUs")
    driver = ask_driver()
    if driver.missing:
        story.say("no NVIDIA driver on this machine: nothing for nvidia-smi to show; JAX computes on the CPU")
    elif driver.trouble:
        story.say(f"the NVIDIA driver does not answer: {driver.trouble}")
    for i, gpu in enumerate(driver.gpus):
        story.say(
            f"GPU {i}: {gpu.name}, {quantity(gpu.used_bytes, 'bytes')} "
            f"of {quantity(gpu.total_bytes, 'bytes')}"
            f" in use, busy {gpu.busy_percent} %, {gpu.power_w:.0f} W, {gpu.temperature_c} degrees; "
            f"driver {driver.version}"
        )
    story.fact("gpu_count", len(driver.gpus))


def names_with_a_fall_back(story: script.Story) -> None:
    """`try_gpu` and `try_all_gpus` work on any machine."""
    story.heading("Naming devices")
    all_gpus = ", ".join(map(show, try_all_gpus()))
    story.say(f"try_gpu() = {show(try_gpu())}, try_gpu(10) = {show(try_gpu(10))}")
    story.say(f"try_all_gpus() = [{all_gpus}]")
    story.say(f"all devices here: {', '.join(map(show, jax.devices()))}")
    try:
        set_cpu_devices(story.flags.devices + 1)
        said = "still possible"
    except JaxperfError as e:
        said = str(e)
    story.say(f"more CPU devices, now that JAX has started: {said}")
    story.fact("too_late_is_said", said.startswith("too late"), show=False)


def arrays_and_devices(config: Config, story: script.Story) -> None:
    """An array lies on a device; an operation runs there; two devices in one operation are an error."""
    story.heading("Arrays on devices")
    first, second = two_devices()
    X = jax.device_put(jnp.ones((2, 3)), first)
    Y = jax.device_put(jax.random.uniform(jax.random.key(config.seed), (2, 3)), second)
    story.say(f"X on {where(X)[0]}, Y on {where(Y)[0]}; X + 1 is computed on {where(X + 1)[0]}")
    try:
        X + Y
        error, message = "", "no error"
    except ValueError as e:
        error, message = type(e).__name__, str(e).splitlines()[0]
    story.say(f"X on {show(first)}, Y on {show(second)}: X + Y raises {error or 'nothing'}\n    {message}")
    Z = jax.device_put(X, second)
    story.say(f"the way out: Z = jax.device_put(X, {show(second)}); Z + Y is computed on {where(Z + Y)[0]}")
    story.fact("mixed_devices_error", error)
    story.claim(
        "Operands must lie on the same device",
        predicted="an error, not a silent copy; after a copy the sum is computed where both lie",
        observed=f"{error or 'no error'}; then computed on {where(Z + Y)[0]}",
        held=bool(error) and where(Z + Y) == [show(second)],
    )
    again = jax.device_put(Z, second)
    same = again.unsafe_buffer_pointer() == Z.unsafe_buffer_pointer()
    story.say(f"device_put to where Z lies already copies nothing: {same}")


def price_of_a_copy(config: Config, story: script.Story) -> None:
    """What moving an array costs, beside reading it where it is."""
    story.heading("What a copy costs")
    first, second = two_devices()
    X = jax.block_until_ready(jax.device_put(jnp.ones((config.megabytes, 250_000)), first))
    total = jax.jit(jnp.sum)
    rows = [
        measure(lambda: jax.device_put(X, second, may_alias=False), name="copy to the other device"),
        measure(lambda: total(X), name="sum where it lies"),
    ]
    story.measured(*rows, base=rows[1].name, title=f"{quantity(X.nbytes, 'bytes')} of float32")
    story.fact("copy_bytes_per_s", X.nbytes / rows[0].median, unit="bytes/s")
    if story.environment.devices_are_fake:
        story.note("both devices are this host's memory: the copy's speed is not that of a bus or a GPU")


def networks_and_devices(config: Config, story: script.Story) -> None:
    """Parameters are put on a device and looked for there; the network computes where they lie."""
    story.heading("A network on a device")
    _, device = two_devices()
    net = nnx.Linear(3, 1, rngs=nnx.Rngs(config.seed))
    nnx.update(net, jax.device_put(nnx.state(net), device))
    x = jax.device_put(jnp.ones((2, 3)), device)
    story.say(f"parameters on {where(nnx.state(net))}, output on {where(net(x))}")
    story.claim(
        "A network computes where its parameters are",
        predicted=f"parameters and output on {show(device)}",
        observed=f"parameters on {', '.join(where(nnx.state(net)))}, output on {', '.join(where(net(x)))}",
        held=where(nnx.state(net)) == where(net(x)) == [show(device)],
    )


def main(config: Config, story: script.Story) -> None:
    """Look, name, place, and see what goes wrong."""
    state_of_the_gpus(story)
    names_with_a_fall_back(story)
    arrays_and_devices(config, story)
    price_of_a_copy(config, story)
    networks_and_devices(config, story)


if __name__ == "__main__":
    script.run(main, FLAGS)
