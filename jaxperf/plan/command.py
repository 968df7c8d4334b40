"""`jaxperf plan`: a reader's step, planned for GPUs or TPUs that are not there."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxperf.errors import JaxperfError, to_one_line
from jaxperf.measure import argument_specs
from jaxperf.measure.user_function import Arguments, load_arguments, load_function, reader_code
from jaxperf.plan import capture, deviceless
from jaxperf.plan.custom_calls import parse_costs
from jaxperf.plan.planning import plan
from jaxperf.plan.report import StepPlan
from jaxperf.process import log_path, native_stderr_to, say
from jaxperf.result import terminal
from jaxperf.result.store import check_writable, write_whole


@dataclass(frozen=True)
class Plan:
    """The flags of `jaxperf plan`, whose help says what each is."""

    step: str = ""
    for_: str = "h100"
    devices: str = "1,8,64"
    args: Sequence[str] = ()
    setup: str = ""
    npz: Path | None = None
    per_device: int | None = None
    total: int | None = None
    batch: str = ""
    mesh: str = ""
    network: str = "infiniband"
    step_ms: float | None = None
    kernel: Sequence[str] = ()
    fit: bool = False
    get: bool = False
    program: Sequence[str] = ()
    json: Path | None = None


def main(asked: Plan) -> int:
    """Plan the step that the command line names, print the plan, and write it to the path given by `--json`.

    Raises:
      JaxperfError: a step, an argument or a number is not what it should be, or the plugin is missing.
    """
    if asked.get:
        print(f"JAX's CUDA plugin, for plans only: {deviceless.get_plugin()}")
        return 0
    deviceless.use_own_plugin()
    if not asked.step and not asked.program:
        raise JaxperfError("no step to plan; give one, jaxperf plan train:step --setup train:arguments")
    path = asked.json and check_writable(asked.json)
    with native_stderr_to(log_path("plan")):  # XLA logs that there is no GPU
        made = _plan(asked)
    console = terminal.console()
    for block in made.blocks():
        terminal.show(console, block)
    if path:
        write_whole(path, json.dumps(made.to_json(), indent=1) + "\n")
        print(to_one_line(f"plan: {asked.json}"))
    return 0


def _plan(asked: Plan) -> StepPlan:
    """Load the step and its arguments, and plan them."""
    counts, axes = numbers(asked.devices, "--devices", least=1, example="1,8,64"), mesh_axes(asked.mesh)
    axis_by_position = batch_axes(asked.batch) if asked.batch else None
    kernels = {name: (cost.flops, cost.bytes) for name, cost in parse_costs(asked.kernel).items()}
    if axes and (size := math.prod(axes.values())) not in counts:
        raise JaxperfError(
            f"--mesh {asked.mesh} takes {size} devices, which are not among --devices {asked.devices}; "
            "give lengths whose product is one of these"
        )
    if asked.for_ == "this":
        deviceless.card_of_this_machine()  # before the reader's program starts JAX, which logs a traceback
    elif not jax.config.jax_platforms:  # type: ignore[attr-defined]
        jax.config.update("jax_platforms", "cpu")  # the plugin would look for a GPU
    if asked.program:
        if asked.step or asked.setup or asked.args or asked.npz:
            raise JaxperfError("give a step and its arguments, or a program after --, and not both")
        step, by_position, by_name = capture.first_step(asked.program)
        call_arguments = Arguments(by_position, by_name)
    else:
        step = load_function(asked.step)
        call_arguments = _arguments(asked)
    return plan(
        step,
        *call_arguments.by_position,
        device=asked.for_,
        devices=counts,
        mesh=axes,
        per_device=asked.per_device,
        total=asked.total,
        batch=axis_by_position,
        network=asked.network,
        measured_s=asked.step_ms and asked.step_ms / 1e3,
        kernels=kernels,
        fit=asked.fit,
        told=lambda line: say(f"plan: {line}"),
        **call_arguments.by_name,
    )


def _arguments(asked: Plan) -> Arguments:
    """Return the step's arguments, of which shapes are enough: nothing is drawn or waited for."""
    if asked.args and not (asked.setup or asked.npz):
        return shapes(asked.args)
    if asked.setup and not (asked.args or asked.npz):
        make = load_function(asked.setup)
        with reader_code(f"{asked.setup}()"):
            made = make()
        return Arguments(made if isinstance(made, tuple) else (made,), {})
    return load_arguments(asked.args, asked.setup, asked.npz)


def numbers(text: str, flag: str, *, least: int, example: str) -> tuple[int, ...]:
    """Return the numbers of "1,8,64".

    Args:
      text: the flag's value.
      flag: its name, for the message.
      least: the smallest number allowed.
      example: a value that the message advises.

    Raises:
      JaxperfError: a part is not a whole number, or too small.
    """
    values = []
    for part in text.split(","):
        if not part.strip().isdecimal() or len(part) > 9 or int(part) < least:
            raise JaxperfError(
                f"{flag}: {part!r} is not a number from {least} on; give some as in {flag} {example}"
            )
        values.append(int(part))
    return tuple(values)


def batch_axes(text: str) -> dict[int, int]:
    """Return the axis of the examples by position, of "1,2:axis=1".

    Raises:
      JaxperfError: a part is not I or I:axis=N.
    """
    axes: dict[int, int] = {}
    for part in text.split(","):
        position, _, axis = part.strip().partition(":axis=")
        if not position.isdecimal() or not (axis or "0").isdecimal() or len(part) > 20:
            raise JaxperfError(
                f"--batch: {part!r} is not a number from 0 on; give positions as in --batch 1,2 or, with the "
                "axis of the examples, --batch 1:axis=1"
            )
        axes[int(position)] = int(axis or 0)
    return axes


def mesh_axes(text: str) -> dict[str, int]:
    """Return the axes of "data=8,model=8"; none for "".

    Raises:
      JaxperfError: a part is not NAME=N.
    """
    axes: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, length = part.strip().partition("=")
        if not name.isidentifier() or not length.isdecimal() or not 0 < int(length) < 10**6 or name in axes:
            raise JaxperfError(f"--mesh: {part!r} is not NAME=N; give axes as in --mesh data=8,model=8")
        axes[name] = int(length)
    return axes


def shapes(specs: Sequence[str]) -> Arguments:
    """Return arguments as `jaxperf measure` takes them, as shapes: nothing of their size is made."""
    by_position, by_name = argument_specs.parse_all(specs)
    return Arguments(
        tuple(_shape(spec) for spec in by_position), {name: _shape(spec) for name, spec in by_name.items()}
    )


def _shape(spec: argument_specs.Spec) -> object:
    if isinstance(spec, argument_specs.Array):
        dtype = jnp.dtype(spec.dtype)
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise JaxperfError(f"argument {spec}: JAX has no 64 bits unless JAX_ENABLE_X64=1 is set; set it")
        return jax.ShapeDtypeStruct(spec.shape, dtype)
    return argument_specs.make(spec)
