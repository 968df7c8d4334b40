"""Describe machine, versions and settings: the `Environment` that is stored with every result."""

from __future__ import annotations

import os
import platform

import jax
import psutil

from jaxperf.result.machine import commit, cores, cpu_model, threads, versions
from jaxperf.result.record import Environment

FLAG_PREFIXES = (
    "JAX_",
    "XLA_",
    "OMP_",
    "MALLOC_",
    "MKL_",
    "TF_CPU_",
    "CUDA_VISIBLE",
    "NVIDIA_TF32",
    "NCCL_",
)
ONEDNN = "--xla_cpu_use_onednn=true"
JAX_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_enable_x64",
    "jax_cpu_enable_async_dispatch",
    "jax_compilation_cache_dir",
)


def current_environment(*, data_source: str = "") -> Environment:
    """Return the environment of this process; this starts the JAX backend, to list the devices.

    Args:
      data_source: where the images came from, if any were read.
    """
    devices = jax.devices()
    backend = jax.default_backend()
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_model(),
        versions=versions(),
        backend=backend,
        devices=tuple(f"{d.platform}:{d.id} {d.device_kind}" for d in devices),
        devices_are_fake=backend == "cpu" and len(jax.local_devices()) > 1,
        cores=cores(),
        threads=threads(),
        memory_bytes=psutil.virtual_memory().total,
        flags={**_variables(), **_settings()},
        accelerated=("oneDNN convolutions",) if ONEDNN in os.environ.get("XLA_FLAGS", "").split() else (),
        data_source=data_source,
        commit=commit(),
    )


def _variables() -> dict[str, str]:
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith(FLAG_PREFIXES)}


def _settings() -> dict[str, str]:
    values = {name: getattr(jax.config, name, None) for name in JAX_SETTINGS}
    return {name: str(value) for name, value in values.items() if value is not None}
