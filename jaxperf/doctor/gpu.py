"""JAX's devices against the driver's: is there a GPU that JAX does not use, and why?"""

from __future__ import annotations

import os

from jaxperf.doctor.finding import Finding, checkout, install_self, pip_install
from jaxperf.doctor.probe import Probe
from jaxperf.measure.driver import Driver, ask_driver
from jaxperf.measure.environment import versions
from jaxperf.report.text import quantity

PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
OLDEST_DRIVER = 525  # CUDA 12's; CUDA 13 wants 580
OLDEST_DRIVER_CUDA13 = 580
BUSY = 0.25  # JAX takes 75 % of a GPU's memory when it starts


def gpu_findings(probe: Probe) -> list[Finding]:
    """The driver and its GPUs, then what JAX makes of them."""
    driver = ask_driver()
    return [*_driver_findings(driver), *_jax_findings(probe, driver)]


def _driver_findings(driver: Driver) -> list[Finding]:
    if driver.missing:
        return [Finding("driver", "note", "no NVIDIA driver: JAX runs on the CPU")]
    if driver.trouble:
        return [Finding("driver", "mend", f"the NVIDIA driver does not answer: {driver.trouble}")]
    found = [Finding("driver", "ok", f"NVIDIA {driver.version}, {len(driver.gpus)} GPU(s)")]
    oldest = OLDEST_DRIVER_CUDA13 if versions(PLUGINS[1:]) else OLDEST_DRIVER
    major = driver.version.split(".")[0]
    if major.isdigit() and int(major) < oldest:
        text = f"NVIDIA {driver.version} is too old, {oldest} is needed; install a newer driver"
        found = [Finding("driver", "mend", text)]
    for i, gpu in enumerate(driver.gpus):
        used = f", {quantity(gpu.used_bytes, 'bytes')} of {quantity(gpu.total_bytes, 'bytes')} in use"
        busy = gpu.used_bytes > BUSY * gpu.total_bytes
        text = f"{i}: {gpu.name}" + (used if gpu.total_bytes else "")
        text += "; another process holds it (see `nvidia-smi`), times will scatter" if busy else ""
        found.append(Finding("gpu", "mend" if busy else "ok", text))
    return found


def _jax_findings(probe: Probe, driver: Driver) -> list[Finding]:
    if probe.trouble:
        return [Finding("jax", "broken", probe.trouble, _mend_start())]
    text = f"{probe.backend}: {', '.join(probe.devices)}"
    if probe.backend != "cpu" or not driver.gpus:
        return [Finding("jax", "ok", text)]
    return [Finding("jax", "ok", text), _why_not_the_gpu(probe)]


def _mend_start() -> str:
    """JAX_PLATFORMS may ask for what is not there; otherwise the packages do not fit each other."""
    return "unset JAX_PLATFORMS" if os.environ.get("JAX_PLATFORMS") else install_self()


def _why_not_the_gpu(probe: Probe) -> Finding:
    """There is a GPU and JAX took the CPU: the likeliest reason that can be seen from here."""
    wanted = os.environ.get("JAX_PLATFORMS", "")
    if wanted and not {"cuda", "gpu"} & set(wanted.split(",")):
        return Finding("jax", "note", f"JAX_PLATFORMS={wanted} keeps JAX off the GPU", "unset JAX_PLATFORMS")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "none"):
        text = f"CUDA_VISIBLE_DEVICES={visible} hides the GPU from JAX"
        return Finding("jax", "mend", text, "unset CUDA_VISIBLE_DEVICES")
    plugins = versions(PLUGINS)
    jaxlib = versions(("jaxlib",)).get("jaxlib", "")
    if not plugins:
        return Finding("jax", "mend", "there is a GPU, but JAX is installed for the CPU only", mend_cuda())
    odd = [f"{name} {v}" for name, v in plugins.items() if v != jaxlib]
    if odd:
        return Finding("jax", "mend", f"{', '.join(odd)} does not fit jaxlib {jaxlib}", mend_cuda())
    said = f": {probe.warnings[-1]}" if probe.warnings else ""
    return Finding("jax", "mend", f"JAX has its CUDA plugin but took the CPU{said}", mend_cuda())


def mend_cuda() -> str:
    """The command that installs JAX for NVIDIA GPUs."""
    root = checkout()
    return pip_install("-r", str(root / "requirements.txt")) if root else install_self("cuda12")
