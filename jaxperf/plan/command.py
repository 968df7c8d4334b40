"""`jaxperf plan`: a step of the user's, planned for GPUs or TPUs that are not there.

After --, a program runs up to its first training step, which is taken with its arguments, and stops.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import jax

from jaxperf.errors import JaxperfError, to_one_line
from jaxperf.measure.user_function import load_arguments, load_function
from jaxperf.plan import deviceless
from jaxperf.plan.arguments import by_position
from jaxperf.plan.first_step import first_step
from jaxperf.plan.planning import plan
from jaxperf.process import forced_end, say
from jaxperf.result import terminal
from jaxperf.result.store import check_writable, write_whole


@forced_end()
def main(asked: Any, program: Sequence[str]) -> int:
    """Plan a step, or that of the program after --, print the plan, and write it to the path of `--json`."""
    if asked.get:
        print(f"JAX's CUDA plugin, for plans only: {deviceless.get_plugin()}")
        return 0
    if not asked.step and not program:
        raise JaxperfError("no step to plan; give one, jaxperf plan train:step --setup train:arguments")
    if program and (asked.step or asked.setup or asked.args):
        raise JaxperfError("give a step and its arguments, or a program after --, and not both")
    size = math.prod(asked.mesh.values())
    if asked.mesh and size not in asked.devices:
        raise JaxperfError(
            f"--mesh takes {size} devices, which are not among --devices "
            f"{','.join(map(str, asked.devices))}; give lengths whose product is one of these"
        )
    deviceless.use_plugin_folder()
    path = asked.json and check_writable(asked.json)
    if asked.for_ == "this":
        deviceless.card_of_this_machine()  # before the user's program starts JAX, which logs a traceback
    elif not jax.config.jax_platforms:  # type: ignore[attr-defined]
        jax.config.update("jax_platforms", "cpu")  # the plugin would look for a GPU
    if program:
        say(f"plan: running {program[-1] if len(program) == 1 else program[1]} up to its first training step")
        step, args, kwargs = first_step(program)
    else:
        step = load_function(asked.step)
        args, kwargs = load_arguments(asked.args, asked.setup, shapes=True)
    # by name, an argument of the step might be one of `plan`, such as `batch`
    step, args = by_position(step, args, kwargs)
    alike = ("devices", "mesh", "per_device", "total", "batch", "network", "fit")
    options = {name: getattr(asked, name) for name in alike}
    kernels = dict(asked.kernel)
    made = plan(step, *args, device=asked.for_, kernels=kernels, told=lambda s: say(f"plan: {s}"), **options)
    terminal.print_all(made.blocks())
    if path:
        write_whole(path, json.dumps(made.to_json(), indent=1) + "\n")
        print(to_one_line(f"plan: {asked.json}"))
    return 0
