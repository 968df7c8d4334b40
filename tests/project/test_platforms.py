"""Other machines: ARM, Apple and x86 processors are told apart, and Windows imports everything.

Needs nothing of conftest.py, so that it runs on Windows too.
"""

import subprocess
import sys
from pathlib import Path

import children

from jaxperf import libraries
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


def model_of(tmp_path, *cores):
    info = tmp_path / "cpuinfo"
    info.write_text("\n".join(core.replace("{i}", str(i)) for i, core in enumerate(cores)))
    return machine.cpu_model(info)


def arm(maker, part):
    return ARM64.replace("{maker}", maker).replace("{part}", part)


def test_processors_are_named_on_every_architecture(tmp_path, monkeypatch):
    assert model_of(tmp_path, X86, X86) == "AMD EPYC 7R13 Processor"
    assert model_of(tmp_path, POWER) == "POWER9 (architected), altivec supported"
    assert model_of(tmp_path, RISC_V) == "sifive,u74-mc"
    assert model_of(tmp_path, arm("0x41", "0xd0c"), arm("0x41", "0xd0b")) == "ARM part 0xd0c + 0xd0b"
    done = subprocess.CompletedProcess([], 0, stdout="Apple M3\n")
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: done)
    assert model_of(tmp_path) == "Apple M3"


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


def test_windows_imports_every_module_and_none_starts_a_backend():
    program = WITHOUT_POSIX
    if sys.platform == "win32":  # nothing need be taken away
        program = program.replace("delattr(signal, name)", "pass").replace("sys.modules[name] = None", "pass")
    done = children.run("-c", program, folder=ROOT)
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stderr[-2000:]


def test_windows_paths_of_libraries_are_recognized(monkeypatch):
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
