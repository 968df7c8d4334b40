"""Compile for GPUs and TPUs that are not there, by JAX's experimental API.

XLA compiles for a description of a GPU ("target config") and a number of nodes, or libtpu for a slice. No
driver and no CUDA is needed. Nothing is autotuned or assembled.
"""

import contextlib
import dataclasses
import functools
import importlib
import itertools
import math
import os
import re
import shutil
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxperf import jax_internals
from jaxperf.errors import JaxperfError, first_line
from jaxperf.hlo import Costs, Module, costs, parse
from jaxperf.libraries import missing_from, pip_install
from jaxperf.measure.stages import all_equations
from jaxperf.measure.user_function import user_errors_shown
from jaxperf.plan import custom_calls
from jaxperf.plan.arguments import Placed, as_flag, name_of
from jaxperf.plan.cards import CARDS, DATA, Card
from jaxperf.plan.first_step import traced
from jaxperf.process import cache_folder

AT_ONCE = 2  # programs compiled at the same time
_CACHED_FROM_S = "jax_persistent_cache_min_compile_time_secs"  # a setting of all threads
CALLBACKS = {"pure_callback", "io_callback", "debug_callback", "debug_print", "infeed", "outfeed"}
# what JAX says of a step that has shardings over devices that are here
_BOUND = ("incompatible devices", "different devices", "context mesh", "Memory kinds passed")
_LIVE = re.compile(r"\s+([\w.-]+)(?:\{[\d,]*\})?: (\d+) bytes")
_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
# Without these, libtpu asks Google's metadata server which TPU this machine has, locks the TPU, and logs.
LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_MIN_LOG_LEVEL": "3", "TPU_STDERR_LOG_LEVEL": "3",
}  # fmt: skip
# Replaces CUDA's assembler. XLA asks it for its version, then for the newest PTX version (by a version that
# does not exist), and then to assemble each kernel.
ASSEMBLER = """#!/bin/sh
case "$*" in
*--version*) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit ;;
*"version 99"*) echo "ptxas fatal : Unsupported .version 99.99; current version is '9.0'" >&2; exit 255 ;;
esac
while [ $# -gt 1 ]; do [ "$1" = -o ] && echo >"$2"; shift; done
"""


def check_plugin(card: Card) -> None:
    if card.is_tpu and missing_from(["libtpu"]):
        raise JaxperfError(f"planning for a TPU needs libtpu, without a TPU; install it: {_install(card)}")
    if not card.is_tpu and _no_plugin():
        raise JaxperfError(
            "planning needs JAX's CUDA plugin, without a GPU; get it aside: jaxperf plan --get; or "
            f"install it: {_install(card)}"
        )


def _no_plugin() -> bool:
    return len(missing_from(_PLUGINS)) == len(_PLUGINS)


def _install(card: Card) -> str:
    return pip_install(f"{'jax[tpu]' if card.is_tpu else 'jax-cuda12-plugin'}=={jax.__version__}")


def plugin_folder() -> Path:
    return cache_folder() / "plan" / f"jax-{jax.__version__}"


def use_plugin_folder() -> None:
    """Let JAX find the plugin of that folder where the environment has none, before it looks for devices."""
    folder = plugin_folder()
    if folder.is_dir() and str(folder) not in sys.path and _no_plugin():
        sys.path.append(str(folder))
        importlib.invalidate_caches()


def get_plugin() -> str:
    """Install JAX's CUDA plugin into a folder that only plans use, and return the folder."""
    # in the user's environment, every later start of JAX would look for a GPU and print a traceback
    folder = plugin_folder()
    names = [f"{name}=={jax.__version__}" for name in ("jax-cuda12-plugin", "jax-cuda12-pjrt")]
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", str(folder), *names]
    run = subprocess.run(pip, capture_output=True, text=True, check=False)
    if run.returncode:
        reason = run.stderr.strip().rpartition("\n")[2][:200] or "no message"
        shutil.rmtree(folder, ignore_errors=True)
        raise JaxperfError(
            f"pip cannot install {names[0]}: {reason}; try: uv run --with {names[0]} jaxperf plan ..."
        )
    return str(folder)


def devices_of(card: Card, count: int) -> list[Any]:
    """Return descriptions of `count` GPUs in full nodes, with one process per GPU, or of a slice of TPUs."""
    check_plugin(card)
    if card.is_tpu:
        for name, value in LIBTPU_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        topology: dict[str, Any] = {"platform": "tpu", "topology_name": f"{card.name}:{card.slice_of(count)}"}
        if count == 1:
            topology["chips_per_host_bounds"] = (1, 1, 1)
    else:
        nodes, in_node = card.nodes_of(count)
        target = card.target or target_config(card)
        topology = {"platform": "cuda", "target_config": target, "topology": f"{nodes}x{in_node}x1"}
    describe = jax_internals.get(jax_internals.TOPOLOGY)
    try:
        return list(describe(**topology).devices)
    except Exception as e:
        line = first_line(e)
        way = f"install the plugin of the same version: {_install(card)}"
        if "not implemented" in line:  # the plugin has looked for a GPU, and is out of use
            way = "JAX has looked for a GPU and found none; set JAX_PLATFORMS=cpu before JAX is imported"
        raise JaxperfError(
            f"JAX {jax.__version__} cannot describe {count} x {card.name}: {line}; {way}"
        ) from None


def card_of_this_machine() -> Card:
    """Return this machine's GPU as a card, with the target that XLA reports for it."""
    jax_internals.quiet_without_driver()
    try:
        devices = jax.devices("cuda")
    except RuntimeError:
        raise JaxperfError("no GPU is here for --for this; name a card, --for h100") from None
    kind = devices[0].device_kind
    card = next((card for card in CARDS.values() if card.name in kind.lower() and not card.is_tpu), None)
    if not card:
        raise JaxperfError(f"{kind} is in no table; name the nearest card by --for")
    topology_for = jax_internals.loaded(jax_internals.DEVICE_TOPOLOGY)
    target = getattr(topology_for and topology_for(devices), "target_config", "")
    return dataclasses.replace(card, target=str(target))


@functools.cache
def toolkit() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for XLA in place of CUDA's; its assembler writes empty files, its library is empty."""
    # a plan needs no machine code: CUDA need not be installed, and a third of the time is saved
    folder = tempfile.TemporaryDirectory(prefix="jaxperf-plan-")
    library = "; LLVM IR without functions\n"
    for name, text in (("bin/ptxas", ASSEMBLER), ("nvvm/libdevice/libdevice.10.bc", library)):
        path = Path(folder.name, name)
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return folder


def compile_for(card: Card, lowered: Any, options: Mapping[str, Any] | None = None, *, count: int = 1) -> Any:
    """Compile a program that was lowered for `count` cards."""
    fixed: dict[str, Any] = dict(options or {})
    # without LLVM's optimization and autotuning, the kernels and their order stay the same
    if not card.is_tpu:
        fixed |= {
            "xla_backend_optimization_level": 0,
            "xla_llvm_disable_expensive_passes": True,
            "xla_gpu_autotune_level": 0,
            "xla_gpu_cuda_data_dir": toolkit().name,
            # where NVIDIA's packages are installed, XLA would link with them, against the empty library
            "xla_gpu_libnvjitlink_mode": "LIB_NV_JIT_LINK_MODE_DISABLED",
        }
    registered: set[str] = set()
    while True:
        try:
            return lowered.compile(compiler_options=fixed)
        except Exception as e:
            line = first_line(e)
            missing = custom_calls.MISSING.search(line)
            if missing and missing[1] not in registered:
                registered.add(missing[1])
                custom_calls.register(missing[1], int("FFI handler" in line))
            else:
                way = "; shard the parameters, or take a smaller batch" if "EXHAUSTED" in line else ""
                raise JaxperfError(
                    f"XLA cannot compile this step for {count} x {card.name}: {line}{way}"
                ) from None


def target_config(card: Card) -> str:
    # the text of XLA's GpuTargetConfigProto
    return string.Template((DATA / "gpu.txtpb").read_text(encoding="utf-8")).substitute(card.figures)


@dataclass(frozen=True)
class Program:
    module: Module
    costs: Costs  # the compiler's memory figures
    live: tuple[tuple[str, int], ...] = ()  # instructions and bytes of the arrays at the peak


def compiled_programs(
    card: Card, placed: Sequence[Placed], told: Callable[[str], None] = lambda line: None
) -> list[Program]:
    """Lower and compile the step for each size; XLA compiles without the GIL, while the next is lowered."""
    began = time.perf_counter()

    def report(done: str, size: int) -> None:
        told(f"{done} for {size} devices, {time.perf_counter() - began:.1f} s")

    with contextlib.ExitStack() as stack:
        # from there, a program would come without a report of its memory, and with the lines of an equal one
        stack.callback(jax.config.update, _CACHED_FROM_S, getattr(jax.config, _CACHED_FROM_S))
        jax.config.update(_CACHED_FROM_S, math.inf)
        stack.enter_context(custom_calls.as_calls())
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        sizes = {}
        for each in placed:
            future = pool.submit(_program, card, _lower(each), each.mesh.size)
            sizes[future] = each.mesh.size
            report("lowered", each.mesh.size)
        for future in as_completed(sizes):
            report("compiled", sizes[future])
        return [future.result() for future in sizes]


def _lower(placed: Placed) -> Any:
    """Lower a step under its mesh, unless the user's function has made it for it."""
    name = name_of(placed.step)
    mesh = contextlib.nullcontext() if placed.made else jax.set_mesh(placed.mesh)
    with user_errors_shown(name), mesh:
        try:
            if not hasattr(placed.step, "trace"):
                return placed.step.lower(*placed.args)
            program = traced(placed.step, placed.args)
            used = {equation.primitive.name for equation in all_equations(program.jaxpr.jaxpr)}
            if callbacks := sorted(used & CALLBACKS):
                raise JaxperfError(
                    f"the step calls Python while it runs ({callbacks[0]}), which cannot be compiled without "
                    "a GPU; take jax.debug.print and callbacks out for planning"
                )
            return program.lower()
        # what is about the devices or the batch, and not about the step, is one line without a traceback
        except (TypeError, ValueError) as e:
            line = first_line(e)
            if any(text in line for text in _BOUND):
                raise JaxperfError(
                    f"{name} is bound to devices that are here; give a function of `devices` that makes it: "
                    "def make(devices): mesh = jax.sharding.Mesh(devices, ('data',)); ...; return step"
                ) from None
            of_value = isinstance(e, jax.errors.JAXTypeError)  # the program asks for a traced array's value
            about_shapes = not of_value and any(word in line for word in ("shape", "sharding"))
            if placed.batch and not placed.made and about_shapes:
                raise JaxperfError(
                    f"{name} raised {type(e).__name__}: {line}; that is with {placed.batch} examples, as by "
                    f"{as_flag(placed.axis)}, positions from 0; name others if that is not the batch"
                ) from None
            raise


def _program(card: Card, lowered: Any, count: int) -> Program:
    with tempfile.TemporaryDirectory(prefix="jaxperf-plan-") as folder:
        options = {} if card.is_tpu else {"xla_dump_to": folder}
        compiled = compile_for(card, lowered, options, count=count)
        reports = [path.read_text("utf-8", "replace") for path in Path(folder).glob("*live-range.txt")]
    peak = "".join(reports[:1]).partition("(peak):\n")[2]
    # the arrays that are alive at the peak come first, one a line
    matches = itertools.takewhile(bool, map(_LIVE.match, peak.splitlines()))
    live = tuple((match[1], int(match[2])) for match in matches if match)
    return Program(parse(compiled.as_text()), costs(compiled), live)
