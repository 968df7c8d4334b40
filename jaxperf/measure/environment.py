"""Describe machine, versions and settings: the `Environment` that is stored with every result."""

import contextlib
import os
import platform

import jax
import psutil

from jaxperf.errors import JaxperfError
from jaxperf.jax_internals import quiet_without_driver
from jaxperf.result.gpus import ask_driver
from jaxperf.result.machine import commit, cores, cpu_model, threads, versions
from jaxperf.result.record import Environment

FLAG_PREFIXES = (
    "JAX_", "XLA_", "OMP_", "MALLOC_", "MKL_", "TF_CPU_", "CUDA_VISIBLE", "NVIDIA_TF32", "NCCL_",
)  # fmt: skip
ONEDNN = "--xla_cpu_use_onednn=true"
JAX_SETTINGS = (
    "jax_default_matmul_precision", "jax_enable_x64", "jax_cpu_enable_async_dispatch",
    "jax_compilation_cache_dir",
)  # fmt: skip


def current_environment(*, data_source: str = "") -> Environment:
    """Start JAX's backend, and return the environment of this process.

    Args:
      data_source: where the images came from, if any were read.

    Raises:
      JaxperfError: JAX cannot start on the requested platform.
    """
    platforms = getattr(jax.config, "jax_platforms", None) or os.environ.get("JAX_PLATFORMS") or ""
    wants_gpu = platforms.startswith("cuda")
    backend = ""
    quiet_without_driver()
    with contextlib.suppress(RuntimeError, AssertionError):
        backend = jax.default_backend()
    if not backend or (wants_gpu and backend != "gpu"):  # JAX silently takes the next one in the list
        missing = "GPU" if wants_gpu else f"device for {platforms or 'any platform'}"
        raise JaxperfError(
            f"JAX finds no {missing}; use the CPU (JAX_PLATFORMS=cpu, or a section's --platform cpu), or see "
            "`jaxperf doctor`"
        )
    flags = {name: value for name, value in sorted(os.environ.items()) if name.startswith(FLAG_PREFIXES)}
    settings = {name: getattr(jax.config, name, None) for name in JAX_SETTINGS}
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_model(),
        versions=versions(),
        backend=backend,
        devices=tuple(f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices()),
        devices_are_fake=backend == "cpu" and len(jax.local_devices()) > 1,
        cores=cores(),
        threads=threads(),
        memory_bytes=psutil.virtual_memory().total,
        flags=flags | {name: str(value) for name, value in settings.items() if value is not None},
        accelerated=("oneDNN convolutions",) if ONEDNN in os.environ.get("XLA_FLAGS", "").split() else (),
        data_source=data_source,
        commit=commit(),
        gpus=ask_driver().description() if backend == "gpu" else (),
    )
