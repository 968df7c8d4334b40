"""The doctor's checks. Each looks at one thing and returns results; none raises or waits for a network."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from jaxperf.doctor.check_result import (
    CheckResult,
    State,
    checkout_folder,
    install_self,
    pip_install,
    stated_requirements,
)
from jaxperf.doctor.probe import JaxReport
from jaxperf.errors import JaxperfError
from jaxperf.process import program_name
from jaxperf.result.formatting import format_quantity
from jaxperf.result.gpus import Driver, ask_driver
from jaxperf.result.machine import CUDA_PLUGINS, CUDNN, available_cores, cores, cpu_model, versions

SHOWN = ("jax", "jaxlib", "flax", "optax", "numpy", *CUDA_PLUGINS, *CUDNN)
OLDEST_DRIVER = 525  # for CUDA 12
OLDEST_DRIVER_CUDA13 = 580
BUSY_GPU = 0.25  # share of a GPU's memory in use; JAX takes 75 % when it starts
BUSY_CORES = 0.5  # load average per core above which times vary
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
DEBIAN_PACKAGE = "apt-get install dataset-fashion-mnist"
CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
CACHE_MIN_VARIABLE = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


# --- Python and the packages


def package_results() -> list[CheckResult]:
    """Return the versions, then one result for each package that is missing or out of bounds."""
    results = [CheckResult("python", "ok", f"{platform.python_version()} at {sys.executable}")]
    shown = ", ".join(f"{name} {version}" for name, version in versions(SHOWN).items())
    problems = [text for r in stated_requirements() if (text := _problem(r))]
    if not problems:
        return [*results, CheckResult("packages", "ok", shown)]
    results.append(CheckResult("packages", "note", shown or "none of jax, flax, optax, numpy"))
    return results + [CheckResult("packages", "broken", text, install_self()) for text in problems]


def _problem(requirement: Requirement) -> str:
    """Return what is wrong with an installed package, in one line; "" if nothing is."""
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed; {requirement} is required"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{requirement.name} is {version}; {requirement} is required"


# --- JAX's devices and the driver's: is there a GPU that JAX does not use, and why?


def device_results(report: JaxReport) -> list[CheckResult]:
    """Return the driver and its GPUs, then JAX's devices."""
    driver = ask_driver()
    return [*_driver_results(driver), *_jax_results(report, driver)]


def _driver_results(driver: Driver) -> list[CheckResult]:
    if driver.missing:
        return [CheckResult("driver", "note", "no NVIDIA driver: JAX runs on the CPU")]
    if driver.trouble:
        return [CheckResult("driver", "warn", f"the NVIDIA driver does not answer: {driver.trouble}")]
    results = [CheckResult("driver", "ok", f"NVIDIA {driver.version}, {len(driver.gpus)} GPU(s)")]
    oldest = OLDEST_DRIVER_CUDA13 if versions(CUDA_PLUGINS[1:]) else OLDEST_DRIVER
    major = driver.version.split(".")[0]
    if major.isdigit() and int(major) < oldest:
        text = f"NVIDIA {driver.version} is too old, {oldest} is required; install a newer driver"
        results = [CheckResult("driver", "warn", text)]
    for i, gpu in enumerate(driver.gpus):
        used, total = (format_quantity(n, "bytes") for n in (gpu.used_bytes, gpu.total_bytes))
        used = f", {used} of {total} in use"
        busy = gpu.used_bytes > BUSY_GPU * gpu.total_bytes
        text = f"{i}: {gpu.name}" + (used if gpu.total_bytes else "") + "".join(f", {w}" for w in gpu.pace())
        text += "; another process uses it (see `nvidia-smi`), times will scatter" if busy else ""
        results.append(CheckResult("gpu", "warn" if busy else "ok", text))
    return results


def _jax_results(report: JaxReport, driver: Driver) -> list[CheckResult]:
    if report.trouble:
        fix = f"unset {report.culprit}" if report.culprit else install_self()
        if (
            "flax.nnx" in report.trouble
        ):  # both versions may be within their bounds, and yet not fit each other
            fix = pip_install("--upgrade", *(str(r) for r in stated_requirements() if r.name == "flax"))
        return [CheckResult("jax", "broken", report.trouble, fix)]
    results = [CheckResult("jax", "ok", f"{report.backend}: {', '.join(report.devices)}")]
    state: State = "warn" if driver.gpus else "note"
    results += [CheckResult("fault", state, f"on a GPU, {line}") for line in report.faults]
    return [*results, _why_not_the_gpu(report)] if report.backend == "cpu" and driver.gpus else results


def _why_not_the_gpu(report: JaxReport) -> CheckResult:
    """Return the likeliest reason why JAX took the CPU although there is a GPU."""
    wanted = os.environ.get("JAX_PLATFORMS", "")
    if wanted and not {"cuda", "gpu"} & set(wanted.split(",")):
        return CheckResult(
            "jax", "note", f"JAX_PLATFORMS={wanted} keeps JAX off the GPU", "unset JAX_PLATFORMS"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "none"):
        text = f"CUDA_VISIBLE_DEVICES={visible} hides the GPU from JAX"
        return CheckResult("jax", "warn", text, "unset CUDA_VISIBLE_DEVICES")
    plugins = versions(CUDA_PLUGINS)
    jaxlib = versions(("jaxlib",)).get("jaxlib", "")
    odd = [f"{name} {v}" for name, v in plugins.items() if v != jaxlib]
    warning = f": {report.warnings[-1]}" if report.warnings else ""
    text = f"JAX has its CUDA plugin but took the CPU{warning}"
    if not plugins:
        text = "there is a GPU, but JAX is installed for the CPU only"
    elif odd:
        text = f"{', '.join(odd)} does not fit jaxlib {jaxlib}"
    kind = "cuda13" if versions(CUDA_PLUGINS[1:]) else "cuda12"  # every driver from 525 on has CUDA 12
    return CheckResult("jax", "warn", text, install_self(kind))


# --- Fashion-MNIST


def data_results() -> list[CheckResult]:
    """Return a result for each source in the order in which "auto" tries them; only "mini" is essential."""
    try:
        import jaxperf.data  # noqa: F401  # a missing NumPy is also a result, so not at the top
    except ImportError as e:
        return [CheckResult("data", "broken", f"jaxperf.data cannot be imported: {e}", install_self())]
    full = [f for f in (_folder(), _tfds(), _download()) if f]
    if not any(f.state == "ok" for f in full):
        text = "no full Fashion-MNIST on this machine; sections download it or use the mini subset"
        full.append(CheckResult("data", "warn", text, DEBIAN_PACKAGE))
    try:
        return [*full, _images("mini")]
    except JaxperfError as e:
        root = checkout_folder()
        command = ["git", "-C", str(root), "checkout", "--", "jaxperf/fashion_mnist_mini"]
        again = shlex.join(command) if root else ""
        return [*full, CheckResult("data", "broken", str(e), again)]


def _images(source: str) -> CheckResult:
    """Read a source in full."""
    from jaxperf.data import fashion_mnist

    dataset = fashion_mnist(source=source)
    counts = f"{len(dataset.train_images):,} + {len(dataset.test_images):,} images"
    return CheckResult("data", "ok", f"{dataset.source}: {counts}")


def _folder() -> CheckResult | None:
    """Check the folder that was named, which must be valid, else Debian's."""
    from jaxperf import data

    named = data.named_folder()
    if named is None and not data.DEBIAN_FOLDER.is_dir():
        return None
    try:
        return _images("folder")
    except JaxperfError as e:
        return CheckResult("data", "warn", str(e), "" if named is None else f"unset {data.FOLDER_VARIABLE}")


def _tfds() -> CheckResult:
    from jaxperf import data

    if missing := data.missing_for_tfds():
        return CheckResult("data", "note", f"tfds: {missing} is not installed", install_self("tfds"))
    if data.tfds_is_prepared():
        return CheckResult("data", "ok", f"tfds: prepared in {data.tfds_folder()}")
    return CheckResult(
        "data", "note", f"tfds: not prepared in {data.tfds_folder()}; the first use prepares it"
    )


def _download() -> CheckResult | None:
    """Check whether the cache holds an earlier download, by sizes; the reader checks the SHA-256."""
    from jaxperf import data

    folder = data.download_folder()
    paths = [(folder / file.name, file.size_bytes) for file in data.ORIGIN_FILES]
    if all(path.is_file() and path.stat().st_size == size for path, size in paths):
        return CheckResult("data", "ok", f"download: kept in {folder}")
    return None


# --- settings that change speed


def settings_results(report: JaxReport) -> list[CheckResult]:
    """Return the compile cache, the allocator, and one result for each debug setting that is on."""
    slow = [
        CheckResult("debug", "warn", f"{flag} is on: measurements refuse to run", f"unset {flag.upper()}")
        for flag in report.debug_flags
    ]
    return [_compile_cache(), _allocator(), *slow]


def _compile_cache() -> CheckResult:
    named = os.environ.get(CACHE_VARIABLE)
    if not named:
        return CheckResult("cache", "note", "compile cache off: every process compiles again")
    path = Path(named)
    if "://" not in named and (not path.is_dir() or not os.access(path, os.W_OK)):
        text = f"compile cache {named} is not a folder that can be written: nothing is kept"
        return CheckResult("cache", "warn", text, shlex.join(["mkdir", "-p", named]))
    files = [p for p in path.iterdir() if p.is_file()] if path.is_dir() else []
    size = format_quantity(sum(p.stat().st_size for p in files), "bytes")
    least = os.environ.get(CACHE_MIN_VARIABLE, "1")
    text = f"{named}: {len(files)} files, {size}; keeps what took longer than {least} s to compile"
    return CheckResult("cache", "ok", text)


# glibc returns large temporaries to the kernel after every step, and the next step faults them in again.
# LeNet's training step on 2 cores (batch 256, jitted, 45 steps): 1,434,000 page faults and 1,783 images/s
# by default, 112,000 faults and 3,190 images/s (1.8 times) with these three on JAX 0.10; 1.35 times on JAX
# 0.12. Either threshold alone changes nothing; the pad saves another quarter of the faults. Memory in use
# grows by about 40 %.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


def uses_glibc() -> bool:
    """Return whether this interpreter allocates through glibc, which reads MALLOC_ variables."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # another C library, or Windows
        return False


def _allocator() -> CheckResult:
    if not uses_glibc():
        return CheckResult("allocator", "note", "not glibc's: its settings are left alone")
    missing = [f"{name}={value}" for name, value in ALLOCATOR.items() if name not in os.environ]
    if not missing:
        return CheckResult("allocator", "ok", ", ".join(f"{name}={os.environ[name]}" for name in ALLOCATOR))
    text = "glibc gives large temporaries back after each step; a program that trains on a CPU may gain from:"
    return CheckResult("allocator", "note", text, "export " + " ".join(missing))


# --- the machine


def machine_results() -> list[CheckResult]:
    """Return the processor with its cores, their load, and memory."""
    count = cores()
    results = [CheckResult("cores", "ok", f"{count} usable, {cpu_model()}")]
    quota = cpu_quota()
    if quota and quota < count:
        text = f"this container may use {quota:g} of them at a time, so threads will wait for each other"
        results.append(CheckResult("cores", "warn", text, _on_fewer_cores(int(quota))))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > BUSY_CORES * count:
        text = f"load average {load:.1f} on {count} cores: other programs run (see `top`), times will scatter"
        results.append(CheckResult("load", "warn", text))
    memory = psutil.virtual_memory()
    text = f"{format_quantity(memory.available, 'bytes')} of {format_quantity(memory.total, 'bytes')} free"
    return [*results, CheckResult("memory", "ok", text)]


def _on_fewer_cores(count: int) -> str:
    """Return the command that runs everything on only as many cores as the limit allows."""
    chosen = available_cores()[: max(count, 1)]
    return f"taskset -c {','.join(map(str, chosen))} {program_name()} run all"


def cpu_quota(path: Path = CPU_QUOTA) -> float:
    """Return how many cores' worth of time a container's limit allows; 0 if there is no limit."""
    try:
        allowed, period = path.read_text().split()
        return int(allowed) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max 100000" means no limit
        return 0.0
