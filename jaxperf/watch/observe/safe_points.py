"""Run a function in the main thread, between two bytecodes, and wait for CUDA devices.

XLA ends a profile with `cuptiFinalize`. If another thread launches kernels meanwhile, every later call to
the GPU in that process can fail with CUDA_ERROR_LAUNCH_FAILED (https://github.com/jax-ml/jax/issues/40260).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections import deque
from collections.abc import Callable, Iterable

_functions: deque[Callable[[], object]] = deque()


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def _run_next(_: object) -> int:
    if _functions:
        _functions.popleft()()
    return 0


def call_in_main_thread(function: Callable[[], object]) -> bool:
    """Make the main thread call a function once, as soon as it runs Python code.

    Returns:
      Whether it will; False if too many calls are pending.
    """
    _functions.append(function)
    if ctypes.pythonapi.Py_AddPendingCall(_run_next, None) == 0:
        return True
    _functions.remove(function)
    return False


@functools.cache
def cuda_driver() -> ctypes.CDLL | None:
    """Return NVIDIA's driver library; None on a machine that has none."""
    for name in ("libcuda.so.1", "nvcuda.dll"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)  # its calls release the GIL
    return None


def wait_for_cuda_devices(numbers: Iterable[int]) -> None:
    """Wait until devices, given by the driver's numbers, have executed all work of this process."""
    if (driver := cuda_driver()) is None:
        return
    for number in numbers:
        context = ctypes.c_void_p()
        if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number):
            continue  # no such device
        driver.cuCtxPushCurrent_v2(context)
        driver.cuCtxSynchronize()
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuDevicePrimaryCtxRelease_v2(number)
