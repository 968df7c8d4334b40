"""Importing JAX, and all its names that are private or experimental, each when a feature first needs it.

JAX may rename them in any version. Then only the feature that needs the name is missing, and says so in one
line. `tests/test_jax_internals.py` removes each name in turn.
"""

import importlib
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError, first_line
from jaxperf.process import USER_MISTAKE, say


@dataclass(frozen=True)
class Internal:
    """A name of JAX that its public API does not promise."""

    module: str
    attribute: str
    feature: str


TOPOLOGY = Internal("jax.experimental.topologies", "get_topology_desc", "jaxperf plan")
DEVICE_TOPOLOGY = Internal("jax._src.lib", "xla_client.get_topology_for_devices", "--for this")
BACKEND_STARTED = Internal("jax._src.xla_bridge", "backends_are_initialized", "the state of JAX's backend")
PROFILER = Internal("jax._src.lib", "_profiler.ProfilerSession", "what `jaxperf watch` says about devices")
ARRAY = Internal("jax._src.array", "ArrayImpl", "what `jaxperf watch` says about waits, before JAX 0.6")
PYTREES = Internal("jax._src.tree_util", "_registry", "advice of `jaxperf watch` about objects of libraries")
XLA_CLIENT = Internal("jax._src.lib", "xla_client", "the trial of an accelerator's program on the CPU")
EXPLAINED = "fast explanations of why JAX traces again"
COMPARED_KEYS = Internal("jax._src.interpreters.partial_eval", "diff_tracing_cache_keys", EXPLAINED)
COMPARED_TREES = Internal("jax._src.interpreters.partial_eval", "diff_trees", EXPLAINED)
UNFINISHED = "the refusal of functions that do not return what they compute"
CALLED = Internal("jax._src.api", "_post_hook_state", UNFINISHED)
CALLED_BEFORE = Internal("jax._src.lib", "jax_jit.global_state", UNFINISHED)  # before JAX 0.8
ENABLE_X64 = Internal("jax", "enable_x64", "float64 beside float32")
ENABLE_X64_BEFORE = Internal("jax.experimental", "enable_x64", "float64 beside float32")  # before JAX 0.8
# settings with which times would be of debugging
# (not jax_explain_cache_misses, which costs time only during traces, an error there anyway)
DEBUG_FLAGS = (
    "jax_disable_jit", "jax_debug_nans", "jax_debug_infs", "jax_debug_key_reuse", "jax_check_tracer_leaks",
    "jax_enable_checks", "jax_log_compiles",
)  # fmt: skip


def import_jax() -> None:
    """Import JAX; a setting that it rejects (JAX_ENABLE_X64=maybe) ends the process with one line."""
    try:
        importlib.import_module("jax")
    except Exception as e:
        say(f"error: JAX cannot be imported: {first_line(e)}; `jaxperf doctor` says why")
        raise SystemExit(USER_MISTAKE) from None
    quiet_without_driver()


def quiet_without_driver() -> None:
    """Keep JAX from a traceback about its CUDA plugin where there is no NVIDIA driver; JAX goes on anyway."""
    if shutil.which("nvidia-smi") is None and not Path("/proc/driver/nvidia/version").exists():
        logging.getLogger("jax._src.xla_bridge").addFilter(_is_not_about_a_plugin)


def _is_not_about_a_plugin(record: logging.LogRecord) -> bool:
    return "plugin configuration error" not in record.getMessage()


def get(internal: Internal, *older: Internal) -> Any:
    """Return what a name of JAX names, or else what the name was in older versions."""
    for each in (internal, *older):
        with suppress(ImportError, AttributeError):
            return attrgetter(each.attribute)(importlib.import_module(each.module))
    version = getattr(sys.modules.get("jax"), "__version__", "unknown")
    name = f"{internal.module}.{internal.attribute}"
    line = f"{internal.feature} is not available with JAX {version}, which has no {name}"
    raise JaxperfError(f"{line}; a newer jaxperf may know its new name")


def stop_listening(event: str, listener: Any) -> None:
    """Have JAX no longer call a listener of its monitoring, for "event_duration" or "scalar"."""
    feature = "the end of a measurement"
    name, older = f"unregister_{event}_listener", f"_unregister_{event}_listener_by_callback"  # before 0.8.2
    get(Internal("jax.monitoring", name, feature), Internal("jax._src.monitoring", older, feature))(listener)


@contextmanager
def after_each_call(hook: Callable[[Any, Any, Any, Any], None]) -> Iterator[None]:
    """Have JAX call `hook(function, args, kwargs, output)` after each call of a jitted function inside.

    `jax_debug_nans` uses the same place, so it must be off. Where this JAX lacks it, nothing is called.
    """
    with ExitStack() as undo:
        try:
            state = get(CALLED)
            # `jax.debug_nans` leaves a value of its own in the thread, which counts first
            undo.callback(state.set_local, state.swap_local(hook))
            undo.callback(state.set_global, None)
            state.set_global(hook)
        except JaxperfError:
            with suppress(JaxperfError):
                state = get(CALLED_BEFORE)()
                undo.callback(setattr, state, "post_hook", None)
                state.post_hook = hook
        yield


def enable_x64(on: bool) -> Any:
    """Return a context in which JAX computes in 64 bits, or does not."""
    return get(ENABLE_X64, ENABLE_X64_BEFORE)(on)


def loaded(internal: Internal) -> Any:
    """Return what a name of JAX names if its module was imported, without importing it; else None."""
    try:
        return attrgetter(internal.attribute)(sys.modules.get(internal.module))
    except AttributeError:
        return None
