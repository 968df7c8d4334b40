"""Kernels that XLA does not compile: flash attention of cuDNN, Pallas, Triton and other custom calls.

None of them is compiled or run. Each stays in the program as one custom call with its arrays, so that its
memory, its shardings and what surrounds it are the program's own. A call of cuDNN's attention says what it
multiplies; a Pallas kernel may give a `cost_estimate`; for others, the reader gives FLOPs and bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from jaxperf.plan.kernels import KERNEL, Cost

CUDNN = 91000  # the version of cuDNN for which attention is lowered
_MISSING = re.compile(r"(?:FFI handler registered for|implementation for custom call to) (\S+)")


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t), ("version_size", ctypes.c_size_t), ("extension", ctypes.c_void_p),
        ("major", ctypes.c_int), ("minor", ctypes.c_int),
    )  # fmt: skip


class _Extension(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(_Metadata)),
    )  # fmt: skip


class _Frame(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("extension", ctypes.POINTER(_Extension)))


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Frame))
def _handler(frame: Any) -> None:
    """Answer XLA's question for the version of its interface; nothing ever runs."""
    extension = frame.contents.extension
    if extension and extension.contents.metadata:
        metadata = extension.contents.metadata.contents
        metadata.major, metadata.minor = _interface()


@functools.cache
def _interface() -> tuple[int, int]:
    """Return the version of XLA's interface for custom calls, from jaxlib's header."""
    import jaxlib

    header = Path(jaxlib.__file__).parent / "include/xla/ffi/api/c_api.h"
    found = dict(re.findall(r"define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text(encoding="utf-8")))
    return int(found.get("MAJOR", 0)), int(found.get("MINOR", 1))


@functools.cache
def register(target: str, api_version: int = 1) -> None:
    """Let XLA compile calls of a function that is not there; a program with such a call cannot run."""
    capsule = jax.ffi.pycapsule(ctypes.cast(_handler, ctypes.c_void_p).value)
    jax.ffi.register_ffi_target(target, capsule, platform="CUDA", api_version=api_version)


def missing_target(message: str) -> tuple[str, int] | None:
    """Return the function that XLA misses, and the version of its interface; None for other messages."""
    match = _MISSING.search(message)
    return (match[1], int("FFI handler" in message)) if match else None


@contextlib.contextmanager
def as_calls(costs: Mapping[str, Cost]) -> Iterator[None]:
    """While the block runs, lower cuDNN's attention and Pallas kernels for a GPU that is not there.

    `costs` replaces what a kernel of that name says of itself.
    """
    with contextlib.ExitStack() as stack:
        if attention := _module("jax._src.cudnn.fused_attention_stablehlo"):
            for name, value in (("check_cudnn_version", CUDNN), ("check_compute_capability", True)):
                if hasattr(attention, name):
                    stack.enter_context(mock.patch.object(attention, name, lambda *_, v=value: v))
        pallas, mlir = _module("jax._src.pallas.pallas_call"), _module("jax._src.interpreters.mlir")
        if pallas and mlir and hasattr(pallas, "pallas_call_p"):
            register(KERNEL)
            rule = mlir.lower_fun(functools.partial(_pallas, costs), multiple_results=True)
            rules = mlir._platform_specific_lowerings["cuda"]
            stack.enter_context(
                mock.patch.dict(rules, {pallas.pallas_call_p: mlir.LoweringRuleEntry(rule, True)})
            )
        yield


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _pallas(costs: Mapping[str, Cost], *args: Any, **params: Any) -> Any:
    """A Pallas kernel as one call of a function that is not there, with its cost as attributes."""
    described = params.get("name_and_src_info", params.get("name"))
    name = str(getattr(described, "name", described) or "pallas_call")
    said = params.get("cost_estimate")
    cost = costs.get(name) or (said and Cost(float(said.flops), float(said.bytes_accessed)))
    results = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in params["out_avals"]]
    attributes = {"flops": cost.flops, "bytes": cost.bytes} if cost else {}
    return jax.ffi.ffi_call(KERNEL, results)(*args, name=name, **attributes)
