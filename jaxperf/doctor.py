"""`jaxperf doctor`: what this machine has, what is missing, and the command that fixes it.

Each check looks at one thing; none raises, or waits for a network. JAX starts in a separate process, where a
broken installation can crash without ending this one.
"""

import importlib.metadata
import itertools
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from jaxperf import libraries
from jaxperf.errors import JaxperfError, escape_control
from jaxperf.known_faults import faults_of, release
from jaxperf.process import child_environment
from jaxperf.result.formatting import format_count, format_quantity
from jaxperf.result.gpus import Driver, ask_driver
from jaxperf.result.machine import CUDA_PLUGINS, CUDNN, cores, cpu_model, versions

# A note needs nothing; a warning works, but not as well as it could; what is broken is essential
State = Literal["ok", "note", "warn", "broken"]
SHOWN = ("jax", "jaxlib", "flax", "optax", "numpy", *CUDA_PLUGINS, *CUDNN)
OLDEST_DRIVER, OLDEST_DRIVER_CUDA13 = 525, 580
BUSY_GPU = 0.25  # share of a GPU's memory in use; JAX takes 75 % when it starts
BUSY_CORES = 0.5  # load average per core above which times vary
# Prints the backend and a line for each device; a traceback ends with what a broken installation raises
CHILD = """
import importlib.util
import jax
import jax.numpy as jnp
if importlib.util.find_spec("flax"):
    import flax.nnx  # what every section imports; it may not fit this JAX
total = float(jax.jit(jnp.sum)(jnp.arange(4.0)))
assert total == 6, f"0 + 1 + 2 + 3 is {total} on {jax.devices()[0]}"
print(jax.default_backend(), *(f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices()), sep="\\n")
"""
LIMIT_S = 120.0  # a first start on a GPU takes about ten seconds


class CheckResult(NamedTuple):
    """One line of the report."""

    topic: str  # one word
    state: State
    text: str
    fix: str = ""  # the command that fixes it, ready to paste


def main() -> int:
    """Print the result of each check and the verdict; return 1 if something essential is broken, else 0."""
    report, states = ask_jax(), Counter[State]()
    for topic, state, text, fix in itertools.chain(
        package_results(), device_results(report), fault_results(report), data_results(), machine_results()
    ):
        states[state] += 1
        # It may quote environment variables
        print(escape_control(f"{state:<7} {topic:<8}  {text}"))
        if fix:
            print(escape_control(f"{'':<7} {'':<8}  -> {fix}"))
    if states["broken"]:
        problems = format_count(states["broken"], "problem")
        print(f"\nnot usable: {problems} must be fixed; see the command above")
        return 1
    better = f"; {format_count(states['warn'], 'thing')} could be better" if states["warn"] else ""
    print(f"\nusable{better}")
    return 0


# --- Python and the packages


def package_results() -> Iterator[CheckResult]:
    yield CheckResult("python", "ok", f"{platform.python_version()} at {sys.executable}")
    shown = ", ".join(f"{name} {version}" for name, version in versions(SHOWN).items())
    bounds = lower_bounds()
    installed = versions(tuple(bounds))
    problems = [
        f"{name} is {installed.get(name, 'not installed')}; {least} or newer is required"
        for name, least in bounds.items()
        if release(installed.get(name, "")) < release(least)
    ]
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


def checkout_folder() -> Path | None:
    root = Path(__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() else None


def install_self(extra: str = "") -> str:
    """Return the command that installs what this package requires (again), or what an extra adds."""
    root, suffix = checkout_folder(), f"[{extra}]" if extra else ""
    return libraries.pip_install(*(["-e", f"{root}{suffix}"] if root else [f"jaxperf{suffix}"]))


# --- JAX's devices and the driver's: is there a GPU that JAX does not use, and why?


@dataclass(frozen=True)
class JaxReport:
    """What JAX reported, or why it did not start."""

    backend: str = ""
    devices: tuple[str, ...] = ()
    error: str = ""
    warnings: tuple[str, ...] = ()  # what else it printed
    culprit: str = ""  # the environment variable that keeps it from starting


def ask_jax(environment: Mapping[str, str] | None = None) -> JaxReport:
    """Start JAX in a process of its own, compile and run one small program on the first device."""
    # A GPU's memory is not preallocated, so that a running experiment is not disturbed.
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | child_environment(environment or os.environ)
    try:
        report = _start(env)
        # A setting that keeps JAX from starting looks like a broken installation; a second start decides.
        settings = ["XLA_FLAGS", *sorted(name for name in env if name.startswith("JAX_"))]
        for name in settings if report.error else ():
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
    backend, *devices = done.stdout.splitlines() or [""]
    error = "" if devices else "JAX started, but what it printed is not understood"
    if done.returncode:
        how = f"was ended by signal {-done.returncode}" if done.returncode < 0 else "does not start"
        error = f"JAX {how}: {messages[-1] if messages else 'it said nothing'}"
    return JaxReport(backend, tuple(devices), error, messages)


def device_results(report: JaxReport) -> Iterator[CheckResult]:
    driver = ask_driver()
    yield from _driver_results(driver)
    if not report.error:
        yield CheckResult("jax", "ok", f"{report.backend}: {', '.join(report.devices)}")
        if report.backend == "cpu" and driver.gpus:
            yield _why_not_the_gpu(report)
        return
    fix = install_self()
    if report.culprit:
        fix = f"unset {report.culprit}"
    elif any("/flax/" in line for line in report.warnings):  # of a traceback
        fix = libraries.pip_install("--upgrade", "flax")
    yield CheckResult("jax", "broken", report.error, fix)


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
        count = format_count(len(driver.gpus), "GPU")
        yield CheckResult("driver", "ok", f"NVIDIA {driver.version}, {count}")
    for gpu, text in zip(driver.gpus, driver.description()[1:]):
        if gpu.total_bytes:
            used, total = (format_quantity(n, "bytes") for n in (gpu.used_bytes, gpu.total_bytes))
            text += f", {used} of {total} in use"
        is_busy = gpu.used_bytes > BUSY_GPU * gpu.total_bytes
        if is_busy:
            text += "; another process uses it (see `nvidia-smi`), times will scatter"
        yield CheckResult("gpu", "warn" if is_busy else "ok", text)


def _why_not_the_gpu(report: JaxReport) -> CheckResult:
    """Return the likeliest reason why JAX took the CPU although there is a GPU."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        text = f"JAX_PLATFORMS={platforms} keeps JAX off the GPU"
        return CheckResult("jax", "note", text, "unset JAX_PLATFORMS")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    if visible.strip() in ("", "-1", "none"):
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
    extra = "cuda13" if versions(CUDA_PLUGINS[1:]) else "cuda12"  # every driver from 525 on has CUDA 12
    return CheckResult("jax", "warn", text, install_self(extra))


def fault_results(report: JaxReport) -> Iterator[CheckResult]:
    jaxlib = versions(("jaxlib",)).get("jaxlib", "")
    backends = dict.fromkeys((report.backend, "cpu")) if jaxlib and report.backend else ()
    for backend in backends:
        for fault in faults_of(jaxlib, backend, " ".join(report.devices)):
            yield CheckResult("fault", "note", f"jaxlib {jaxlib}: {fault.text}")


# --- Fashion-MNIST


def data_results() -> Iterator[CheckResult]:
    from jaxperf.data import DEBIAN_FOLDER, fashion_mnist

    named = os.environ.get("JAXPERF_DATA")
    fixes = {"mini": install_self()}
    if named or DEBIAN_FOLDER.is_dir():
        fixes = {"folder": "unset JAXPERF_DATA" if named else ""} | fixes
    for source, fix in fixes.items():
        try:
            data = fashion_mnist(source=source)
            counts = f"{len(data.train_images):,} + {len(data.test_images):,} images"
            yield CheckResult("data", "ok", f"{data.source}: {counts}")
        except JaxperfError as e:
            yield CheckResult("data", "broken" if source == "mini" else "warn", str(e), fix)
    if "folder" not in fixes:
        text = "no full Fashion-MNIST on this machine; sections use the subset, and --full downloads it"
        yield CheckResult("data", "note", text, "apt-get install dataset-fashion-mnist")


# --- the machine


def machine_results() -> Iterator[CheckResult]:
    count = cores()
    yield CheckResult("cores", "ok", f"{count} usable, {cpu_model()}")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > BUSY_CORES * count:
        text = f"load average {load:.1f} on {count} cores: other programs run (see `top`), times will scatter"
        yield CheckResult("load", "warn", text)
