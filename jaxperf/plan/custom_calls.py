"""Kernels that XLA does not compile: flash attention of cuDNN, Pallas, Triton and other custom calls.

None of them is compiled or run. Each stays in the program as one custom call with its arrays, so that its
memory, its shardings and what surrounds it are the program's own. A call of cuDNN's attention says what it
multiplies; a Pallas kernel may give a `cost_estimate`; for others, the reader gives FLOPs and bytes.
"""

import contextlib
import functools
import importlib
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
from jaxlib import lapack

from jaxperf.plan.kernels import KERNEL

CUDNN = 91000  # the version of cuDNN for which attention is lowered
MISSING = re.compile(r"(?:FFI handler registered for|implementation for custom call to) (\S+)")


@functools.cache
def register(target: str, api_version: int = 1) -> None:
    """Let XLA compile calls of a function that is not there; a program with such a call cannot run."""
    # in its place is a function of jaxlib for CPUs, which XLA asks for the version of its interface only
    there = next(function for _, function, version in lapack.registrations()["cpu"] if version == 1)
    jax.ffi.register_ffi_target(target, there, platform="CUDA", api_version=api_version)


@contextlib.contextmanager
def as_calls() -> Iterator[None]:
    """While the block runs, lower cuDNN's attention and Pallas kernels for a GPU that is not there."""
    with contextlib.ExitStack() as stack:
        attention = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
        for name, value in (("check_cudnn_version", CUDNN), ("check_compute_capability", True)):
            if hasattr(attention, name):  # not in all versions
                stack.enter_context(mock.patch.object(attention, name, lambda *_, v=value: v))
        register(KERNEL)
        mlir = importlib.import_module("jax._src.interpreters.mlir")
        primitive = importlib.import_module("jax._src.pallas.pallas_call").pallas_call_p
        rule = mlir.LoweringRuleEntry(mlir.lower_fun(_pallas, multiple_results=True), True)
        rules = mlir._platform_specific_lowerings["cuda"]
        stack.enter_context(mock.patch.dict(rules, {primitive: rule}))
        yield


def _pallas(*args: Any, **params: Any) -> Any:
    """A Pallas kernel as one call of a function that is not there, with its cost as attributes."""
    described = params.get("name_and_src_info", params.get("name"))
    name = str(getattr(described, "name", described) or "pallas_call")
    cost = params.get("cost_estimate")
    attributes = {"flops": float(cost.flops), "bytes": float(cost.bytes_accessed)} if cost else {}
    results = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in params["out_avals"]]
    return jax.ffi.ffi_call(KERNEL, results)(*args, name=name, **attributes)
