"""Other machines: ARM, Apple and x86 processors are told apart, and Windows imports everything.

Needs nothing of conftest.py, so that it runs on Windows too.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from jaxperf import errors, libraries
from jaxperf import process as parent
from jaxperf.errors import JaxperfError
from jaxperf.result import machine
from jaxperf.watch.observe import source_location

ROOT = Path(__file__).resolve().parents[2]
# The fields of /proc/cpuinfo that tell processors apart, from machines of each kind
X86 = """processor\t: {i}
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7R13 Processor
stepping\t: 1
flags\t\t: fpu vme de pse avx2
"""
ARM64 = """processor\t: {i}
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics
CPU implementer\t: {maker}
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: {part}
CPU revision\t: 1
"""
POWER = "processor\t: {i}\ncpu\t\t: POWER9 (architected), altivec supported\nclock\t\t: 2200.000000MHz\n"
RISC_V = "processor\t: {i}\nhart\t\t: 0\nisa\t\t: rv64imafdc\nmmu\t\t: sv39\nuarch\t\t: sifive,u74-mc\n"


def model_of(tmp_path: Path, *cores: str) -> str:
    info = tmp_path / "cpuinfo"
    info.write_text("\n".join(core.replace("{i}", str(i)) for i, core in enumerate(cores)))
    return machine.cpu_model(info)


def arm(maker: str, part: str) -> str:
    return ARM64.replace("{maker}", maker).replace("{part}", part)


def test_linux_processors_are_named_on_every_architecture(tmp_path: Path) -> None:
    assert model_of(tmp_path, X86, X86) == "AMD EPYC 7R13 Processor"
    assert model_of(tmp_path, arm("0x41", "0xd0c"), arm("0x41", "0xd0c")) == "ARM Neoverse-N1"
    assert model_of(tmp_path, arm("0x41", "0xd40")) == "ARM Neoverse-V1"
    assert model_of(tmp_path, arm("0x61", "0x022"), arm("0x61", "0x023")) == (
        "Apple M1 (Icestorm) + Apple M1 (Firestorm)"
    )
    assert model_of(tmp_path, POWER) == "POWER9 (architected), altivec supported"
    assert model_of(tmp_path, RISC_V) == "sifive,u74-mc"


def test_arm_processors_that_are_not_in_the_table_differ_by_their_numbers(tmp_path: Path) -> None:
    one, other = (model_of(tmp_path, arm("0x41", part)) for part in ("0xfff", "0xffe"))
    assert one == "ARM implementer 0x41, part 0xfff" != other
    old = "model name\t: ARMv8 Processor rev 3 (v8l)\n" + arm("0x41", "0xd08")
    assert model_of(tmp_path, old) == "ARM Cortex-A72"


def test_apple_processors_are_named_by_sysctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "sys", SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    none = tmp_path / "none"
    for model in ("Apple M1", "Apple M4 Pro"):
        done = subprocess.CompletedProcess([], 0, stdout=f"{model}\n")
        monkeypatch.setattr(machine.subprocess, "run", lambda *_, done=done, **__: done)
        assert machine.cpu_model(none) == model

    def broken(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(machine.subprocess, "run", broken)
    assert machine.cpu_model(none) == "arm"


def test_a_system_that_tells_nothing_has_an_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "sys", SimpleNamespace(platform="linux"))
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "loongarch64")
    assert machine.cpu_model(tmp_path / "none") == "loongarch64"


# What Windows lacks of POSIX; with these gone, every module is imported in a process of its own.
WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, sys, time
sys.argv = ["imported", "--not-a-flag"]  # nobody may read flags while being imported
import asyncio, concurrent.futures, multiprocessing, subprocess, tempfile  # which know that this is Linux
import flax.nnx, jax, matplotlib.pyplot, orbax.checkpoint, psutil, scipy.stats
from jax._src.xla_bridge import backends_are_initialized
for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog"):
    sys.modules[name] = None
for name in ("SIGHUP", "SIGKILL", "SIGCONT", "SIGSTOP", "SIGALRM", "SIGUSR1", "SIGQUIT", "pthread_sigmask",
             "setitimer", "alarm", "sigwait"):
    delattr(signal, name)
for name in ("killpg", "getpgid", "setsid", "fork", "getloadavg", "sched_getaffinity",
             "sched_setaffinity", "SCHED_IDLE", "confstr", "mkfifo", "fchmod", "O_NOFOLLOW"):
    if hasattr(os, name):
        delattr(os, name)
import jaxperf
failed = []
for module in pkgutil.walk_packages(jaxperf.__path__, "jaxperf.", onerror=failed.append):
    last = module.name.rpartition(".")[2]
    if last == "__main__":  # a program
        continue
    try:
        importlib.import_module(module.name)
        assert not backends_are_initialized(), "it starts a JAX backend"
    except Exception as e:
        failed.append(f"{module.name}: {type(e).__name__}: {e}")
jax.devices()
assert backends_are_initialized()  # so it would have been noticed
print("\\n".join(failed))
"""


def test_windows_imports_every_module_and_none_starts_a_backend() -> None:
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    program = WITHOUT_POSIX
    if sys.platform == "win32":  # nothing need be taken away
        program = program.replace("delattr(signal, name)", "pass").replace("sys.modules[name] = None", "pass")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, timeout=200
    )
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr[-2000:]


def test_windows_is_told_in_one_line_to_use_wsl2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "WINDOWS", True)
    with pytest.raises(JaxperfError, match=r"^[^\n]* does not work on Windows; use WSL2[^\n]*$"):
        errors.not_on_windows("this")


def test_a_windows_process_knows_whether_its_parent_lives() -> None:
    lives = parent._on_windows(
        os.getpid()
    )  # which is not its own getppid(), as in a virtual environment there
    assert lives()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        lives = parent._on_windows(child.pid)
        assert lives()
        child.kill()
    assert not lives()
    assert psutil.pid_exists(os.getpid()) and not parent._on_windows(2**30)()


def test_windows_paths_of_libraries_are_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = r"C:\venv\Lib\site-packages"
    monkeypatch.setattr(libraries.os, "sep", "\\")
    monkeypatch.setattr(libraries.sysconfig, "get_paths", lambda: dict.fromkeys(KEYS, packages))
    monkeypatch.setattr(sys, "path", [packages])
    libraries._installed_roots.cache_clear()
    source_location.library_of.cache_clear()
    try:
        assert libraries._installed_roots() == (packages + "\\",)
        assert source_location.library_of(packages + r"\jax\_src\pjit.py") != ""
        assert source_location.library_of(r"C:\work\train.py") == ""
    finally:
        monkeypatch.undo()
        libraries._installed_roots.cache_clear()
        source_location.library_of.cache_clear()


KEYS = ("purelib", "platlib", "stdlib", "platstdlib")
