"""Convolutions through oneDNN on x86 CPUs. Off unless asked for: `jaxperf.onednn.enable()`."""

from __future__ import annotations

import os
import sys


def enable() -> bool:
    """Send this process's convolutions and their gradients through oneDNN, if that works here.

    Call it before JAX's first operation. A trial in a separate process comes first, for a few seconds. It
    sets variables of the environment, which processes started later inherit. From JAX 0.12 on, it turns on
    XLA's own switch, which XLA reads only once. Before 0.12, it gives JAX another rule for lowering
    convolutions; it may then be called later, too, but programs that were compiled before keep JAX's own
    convolutions, and only float32 images with the channels last are concerned. Calling it again changes
    nothing. A GPU's programs stay as they are.

    Returns:
      True, or False after one line on standard error that says why oneDNN stays off: the processor is not
      x86, a compile cache is set, XLA_FLAGS has flags for oneDNN or YNNPACK, or the trial failed.

    Raises:
      JaxperfError: with JAX 0.12 or later, JAX has already computed something in this process.
    """
    from jaxperf.onednn import trial

    if not trial.requested():  # by an earlier call, or by the process that started this one
        environment = {**os.environ, trial.CACHE: _compile_cache()}
        reason = trial.obstacle(environment)
        if not reason and trial.has_switch():
            _check_not_started()
        if reason := reason or trial.refusal(environment):
            print(f"jaxperf: oneDNN stays off: {reason}", file=sys.stderr)
            return False
        os.environ.update(trial.variables(environment))
    trial.begin()
    return True


def _check_not_started() -> None:
    from jaxperf.errors import JaxperfError
    from jaxperf.jax_internals import BACKEND_STARTED, loaded

    started = loaded(BACKEND_STARTED)
    if started and started():
        line = (
            "JAX has started, and XLA reads XLA_FLAGS only then; call enable() before JAX's first operation"
        )
        raise JaxperfError(line)


def _compile_cache() -> str:
    """Return the folder of JAX's compile cache, "" for none; importing JAX reads it from the environment."""
    jax = sys.modules.get("jax")
    if jax is None:
        return os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    return jax.config.jax_compilation_cache_dir or ""
