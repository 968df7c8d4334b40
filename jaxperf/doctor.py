"""`jaxperf doctor`: what this machine has, what is missing, and the command that fixes it.

Each check looks at one thing; none raises, or waits for a network. JAX starts in a separate process, where a
broken installation can crash without ending this one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from jaxperf import libraries
from jaxperf.errors import JaxperfError, escape_control
from jaxperf.known_faults import faults_of, release
from jaxperf.process import child_environment, program_name
from jaxperf.result.formatting import format_count, format_quantity
from jaxperf.result.gpus import Driver, ask_driver
from jaxperf.result.machine import CUDA_PLUGINS, CUDNN, available_cores, cores, cpu_model, versions

# A note needs nothing; a warning works, but not as well as it could; what is broken is essential
State = Literal["ok", "note", "warn", "broken"]
SHOWN = ("jax", "jaxlib", "flax", "optax", "numpy", *CUDA_PLUGINS, *CUDNN)
OLDEST_DRIVER, OLDEST_DRIVER_CUDA13 = 525, 580
BUSY_GPU = 0.25  # share of a GPU's memory in use; JAX takes 75 % when it starts
BUSY_CORES = 0.5  # load average per core above which times vary
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CHILD = "from jaxperf.doctor import answer; raise SystemExit(answer())"
LIMIT_S = 120.0  # a first start on a GPU takes about ten seconds
# glibc returns large temporaries to the kernel after every step, and the next step faults them in again.
# LeNet's training step on 2 cores (batch 256, jitted, 45 steps): 1,434,000 page faults and 1,783 images/s
# by default, 112,000 faults and 3,190 images/s (1.8 times) with these three on JAX 0.10; 1.35 times on JAX
# 0.12. Memory in use grows by about 40 %.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


@dataclass(frozen=True)
class CheckResult:
    """One line of the report."""

    topic: str  # one word
    state: State
    text: str
    fix: str = ""  # the command that fixes it, ready to paste


def main() -> int:
    """Print what was found and the verdict; return 1 if something essential is broken, else 0."""
    report = ask_jax()
    results = [
        *package_results(),
        *device_results(report),
        *fault_results(report),
        *data_results(),
        *settings_results(report),
        *machine_results(),
    ]
    for line in report_lines(results):
        print(escape_control(line))  # it may quote environment variables
    broken = sum(result.state == "broken" for result in results)
    better = sum(result.state == "warn" for result in results)
    if broken:
        print(f"\nnot usable: {format_count(broken, 'problem')} must be fixed; see the command above")
    elif better:
        print(f"\nusable; {format_count(better, 'thing')} could be better")
    else:
        print("\nusable")
    return 1 if broken else 0


def report_lines(results: Sequence[CheckResult]) -> Iterator[str]:
    """Yield the results as lines of text, each command under the problem that it fixes."""
    wide = max((len(result.topic) for result in results), default=0)
    for result in results:
        yield f"{result.state:<7} {result.topic:<{wide}}  {result.text}"
        if result.fix:
            yield f"{'':<7} {'':<{wide}}  -> {result.fix}"


# --- Python and the packages


def package_results() -> Iterator[CheckResult]:
    """Yield the versions, then one result for each package that is missing or too old."""
    yield CheckResult("python", "ok", f"{platform.python_version()} at {sys.executable}")
    shown = ", ".join(f"{name} {version}" for name, version in versions(SHOWN).items())
    problems = list(filter(None, (_problem(name, least) for name, least in lower_bounds().items())))
    yield CheckResult("packages", "note" if problems else "ok", shown or "none of JAX and NumPy")
    for text in problems:
        yield CheckResult("packages", "broken", text, install_self())
    missing = libraries.missing_from(libraries.CHAPTER)
    if missing:
        text = f"without {', '.join(missing)}, the sections do not run; the tools do"
        yield CheckResult("chapter", "note", text, install_self("chapter"))


def lower_bounds() -> dict[str, str]:
    """Return the oldest version of each package that the tools need, from this package's metadata."""
    try:
        lines = importlib.metadata.requires("jaxperf") or []
    except importlib.metadata.PackageNotFoundError:  # on PYTHONPATH
        return {}
    bounds = (re.fullmatch(r"([\w.-]+)\s*>=\s*([\d.]+)", line) for line in lines)  # an extra's have a marker
    return {match[1]: match[2] for match in bounds if match}


def _problem(name: str, least: str) -> str:
    """Return what is wrong with an installed package, in one line; "" if nothing is."""
    version = versions((name,)).get(name)
    if version is None:
        return f"{name} is not installed; {least} or newer is required"
    if release(version) < release(least):
        return f"{name} is {version}; {least} or newer is required"
    return ""


def checkout_folder() -> Path | None:
    """Return the folder of the checkout that this package runs from; None for an installed package."""
    root = Path(__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() else None


def install_self(extra: str = "") -> str:
    """Return the command that installs what this package requires (again), or what an extra adds."""
    root, suffix = checkout_folder(), f"[{extra}]" if extra else ""
    if root:
        return libraries.pip_install("-e", f"{root}{suffix}")
    return libraries.pip_install(f"jaxperf{suffix}")


# --- JAX's devices and the driver's: is there a GPU that JAX does not use, and why?


@dataclass(frozen=True)
class JaxReport:
    """What JAX reported, or why it did not start."""

    backend: str = ""
    devices: tuple[str, ...] = ()
    debug_flags: tuple[str, ...] = ()  # debug settings that are on
    error: str = ""
    warnings: tuple[str, ...] = ()  # what else it printed
    culprit: str = ""  # the environment variable that keeps it from starting


def ask_jax(environment: Mapping[str, str] | None = None) -> JaxReport:
    """Start JAX in a process of its own, compile and run one small program on the first device."""
    # A GPU's memory is not preallocated, so that a running experiment is not disturbed.
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | child_environment(environment or os.environ)
    try:
        report = _start(env)
        if not report.error:
            return report
        # A setting that keeps JAX from starting looks like a broken installation; a second start decides.
        settings = ["XLA_FLAGS", *sorted(name for name in env if name.startswith("JAX_"))]
        for name in settings:
            without = {key: value for key, value in env.items() if key != name}
            if name in env and not _start(without).error:
                setting = f"{name}={env[name]}"[:100]
                return replace(report, error=f"JAX does not start with {setting}", culprit=name)
    except subprocess.TimeoutExpired:
        return JaxReport(error=f"JAX was not ready after {LIMIT_S:.0f} s")
    return report


def _start(env: Mapping[str, str]) -> JaxReport:
    command = [sys.executable, "-P", "-c", CHILD]  # -P: nothing in the current folder may shadow a package
    done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
    messages = tuple(line.strip() for line in done.stderr.splitlines() if line.strip())
    if done.returncode:
        how = f"was ended by signal {-done.returncode}" if done.returncode < 0 else "does not start"
        return JaxReport(error=f"JAX {how}: {messages[-1] if messages else 'it said nothing'}")
    try:
        report = json.loads(done.stdout.splitlines()[-1])
        return JaxReport(
            report["backend"], tuple(report["devices"]), tuple(report["debug_flags"]), warnings=messages
        )
    except (ValueError, IndexError, KeyError, TypeError):
        return JaxReport(error="JAX started, but what it printed is not understood")


def answer() -> int:
    """Print what JAX sees as JSON, or why it does not start as the last line of standard error.

    Runs in the process that `ask_jax` starts. Returns the exit status.
    """
    try:
        print(json.dumps(_jax_facts()))
    except Exception as e:  # report whatever a broken installation raises
        reason = " ".join(str(e).split())
        print(f"{type(e).__name__}: {reason}" if reason else type(e).__name__, file=sys.stderr)
        return 1
    return 0


def _jax_facts() -> dict[str, object]:
    import jax
    import jax.numpy as jnp

    from jaxperf.jax_internals import DEBUG_FLAGS

    if not libraries.missing_from(["flax"]):
        try:
            importlib.import_module("flax.nnx")  # what every section imports; it may not fit this JAX
        except Exception as e:
            raise ImportError(f"flax.nnx cannot be imported with JAX {jax.__version__}: {e}") from e
    total = float(jax.jit(jnp.sum)(jnp.arange(4.0)))
    if total != 6.0:
        raise ArithmeticError(f"0 + 1 + 2 + 3 is {total} on {jax.devices()[0]}")
    return {
        "backend": jax.default_backend(),
        "devices": [f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices()],
        "debug_flags": [flag for flag in DEBUG_FLAGS if getattr(jax.config, flag, False)],
    }


def device_results(report: JaxReport) -> Iterator[CheckResult]:
    """Yield the driver and its GPUs, then JAX's devices."""
    driver = ask_driver()
    yield from _driver_results(driver)
    if not report.error:
        yield CheckResult("jax", "ok", f"{report.backend}: {', '.join(report.devices)}")
        if report.backend == "cpu" and driver.gpus:
            yield _why_not_the_gpu(report)
    elif report.culprit:
        yield CheckResult("jax", "broken", report.error, f"unset {report.culprit}")
    elif "flax.nnx" in report.error:
        yield CheckResult("jax", "broken", report.error, libraries.pip_install("--upgrade", "flax"))
    else:
        yield CheckResult("jax", "broken", report.error, install_self())


def _driver_results(driver: Driver) -> Iterator[CheckResult]:
    oldest = OLDEST_DRIVER_CUDA13 if versions(CUDA_PLUGINS[1:]) else OLDEST_DRIVER
    major = driver.version.split(".")[0]
    if driver.missing:
        yield CheckResult("driver", "note", "no NVIDIA driver: JAX runs on the CPU")
    elif driver.error:
        yield CheckResult("driver", "warn", f"the NVIDIA driver does not answer: {driver.error}")
    elif major.isdigit() and int(major) < oldest:
        text = f"NVIDIA {driver.version} is too old, {oldest} is required; install a newer driver"
        yield CheckResult("driver", "warn", text)
    else:
        text = f"NVIDIA {driver.version}, {format_count(len(driver.gpus), 'GPU')}"
        yield CheckResult("driver", "ok", text)
    for i, gpu in enumerate(driver.gpus):
        parts = [f"{i}: {gpu.name}"]
        if gpu.total_bytes:
            used, total = (format_quantity(n, "bytes") for n in (gpu.used_bytes, gpu.total_bytes))
            parts.append(f"{used} of {total} in use")
        text = ", ".join([*parts, *gpu.pace()])
        if gpu.used_bytes > BUSY_GPU * gpu.total_bytes:
            text += "; another process uses it (see `nvidia-smi`), times will scatter"
            yield CheckResult("gpu", "warn", text)
        else:
            yield CheckResult("gpu", "ok", text)


def _why_not_the_gpu(report: JaxReport) -> CheckResult:
    """Return the likeliest reason why JAX took the CPU although there is a GPU."""
    wanted = os.environ.get("JAX_PLATFORMS", "")
    if wanted and not {"cuda", "gpu"} & set(wanted.split(",")):
        text = f"JAX_PLATFORMS={wanted} keeps JAX off the GPU"
        return CheckResult("jax", "note", text, "unset JAX_PLATFORMS")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "none"):
        text = f"CUDA_VISIBLE_DEVICES={visible} hides the GPU from JAX"
        return CheckResult("jax", "warn", text, "unset CUDA_VISIBLE_DEVICES")
    plugins = versions(CUDA_PLUGINS)
    jaxlib = versions(("jaxlib",)).get("jaxlib", "")
    unfit = [f"{name} {version}" for name, version in plugins.items() if version != jaxlib]
    if not plugins:
        text = "there is a GPU, but JAX is installed for the CPU only"
    elif unfit:
        text = f"{', '.join(unfit)} does not fit jaxlib {jaxlib}"
    else:
        text = ": ".join(["JAX has its CUDA plugin but took the CPU", *report.warnings[-1:]])
    kind = "cuda13" if versions(CUDA_PLUGINS[1:]) else "cuda12"  # every driver from 525 on has CUDA 12
    return CheckResult("jax", "warn", text, install_self(kind))


def fault_results(report: JaxReport) -> Iterator[CheckResult]:
    """Yield a note on each known fault of the installed jaxlib on the backend and on the CPU."""
    jaxlib = versions(("jaxlib",)).get("jaxlib", "")
    backends = dict.fromkeys((report.backend, "cpu")) if jaxlib and report.backend else ()
    for backend in backends:
        for fault in faults_of(jaxlib, backend, " ".join(report.devices)):
            yield CheckResult("fault", "note", f"jaxlib {jaxlib}: {fault.text}")


# --- Fashion-MNIST


def data_results() -> Iterator[CheckResult]:
    """Yield whether the images that come along can be read, and a folder with all of them, if any."""
    from jaxperf.data import DEBIAN_FOLDER, fashion_mnist

    named = os.environ.get("JAXPERF_DATA")
    sources = ["folder", "mini"] if named or DEBIAN_FOLDER.is_dir() else ["mini"]
    for source in sources:
        try:
            data = fashion_mnist(source=source)
            counts = f"{len(data.train_images):,} + {len(data.test_images):,} images"
            yield CheckResult("data", "ok", f"{data.source}: {counts}")
        except JaxperfError as e:
            if source == "mini":
                yield CheckResult("data", "broken", str(e), install_self())
            else:
                yield CheckResult("data", "warn", str(e), "unset JAXPERF_DATA" if named else "")
    if len(sources) == 1:
        text = "no full Fashion-MNIST on this machine; sections use the subset, and --full downloads it"
        yield CheckResult("data", "note", text, "apt-get install dataset-fashion-mnist")


# --- settings that change speed


def settings_results(report: JaxReport) -> Iterator[CheckResult]:
    """Yield the compile cache, the allocator, and one result for each debug setting that is on."""
    yield _compile_cache()
    yield _allocator()
    for flag in report.debug_flags:
        text = f"{flag} is on: measurements refuse to run"
        yield CheckResult("debug", "warn", text, f"unset {flag.upper()}")


def _compile_cache() -> CheckResult:
    named = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if not named:
        return CheckResult("cache", "note", "compile cache off: every process compiles again")
    path = Path(named)
    if "://" not in named and (not path.is_dir() or not os.access(path, os.W_OK)):
        text = f"compile cache {named} is not a folder that can be written: nothing is kept"
        return CheckResult("cache", "warn", text, shlex.join(["mkdir", "-p", named]))
    files = [p for p in path.iterdir() if p.is_file()] if path.is_dir() else []
    size = format_quantity(sum(p.stat().st_size for p in files), "bytes")
    least = os.environ.get("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1")
    text = f"{named}: {len(files)} files, {size}; keeps what took longer than {least} s to compile"
    return CheckResult("cache", "ok", text)


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


def machine_results() -> Iterator[CheckResult]:
    """Yield the processor with its cores, their load, and memory."""
    count, quota = cores(), cpu_quota()
    yield CheckResult("cores", "ok", f"{count} usable, {cpu_model()}")
    if quota and quota < count:
        text = f"this container may use {quota:g} of them at a time, so threads will wait for each other"
        chosen = ",".join(map(str, available_cores()[: max(int(quota), 1)]))
        yield CheckResult("cores", "warn", text, f"taskset -c {chosen} {program_name()} run all")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > BUSY_CORES * count:
        text = f"load average {load:.1f} on {count} cores: other programs run (see `top`), times will scatter"
        yield CheckResult("load", "warn", text)
    with contextlib.suppress(ImportError):  # which the packages' result says
        import psutil

        memory = psutil.virtual_memory()
        free, total = (format_quantity(n, "bytes") for n in (memory.available, memory.total))
        yield CheckResult("memory", "ok", f"{free} of {total} free")


def cpu_quota(path: Path = CPU_QUOTA) -> float:
    """Return how many cores' worth of time a container's limit allows; 0 if there is no limit."""
    try:
        allowed, period = path.read_text().split()
        return int(allowed) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max 100000" means no limit
        return 0.0
