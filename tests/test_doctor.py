import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jaxperf import cli, doctor
from jaxperf.doctor import JaxReport, ask_jax, checkout_folder
from jaxperf.process import child_environment
from jaxperf.result.gpus import Driver, Gpu, ask_driver

CPU = JaxReport("cpu", ("cpu:0 cpu",))
POWER = {"power_w": 70.0, "power_limit_w": 700.0, "clock_mhz": 345, "most_clock_mhz": 1980}
H100 = Driver("570.86", (Gpu("NVIDIA H100", 80 << 30, 1 << 30, **POWER),))


def states(results):
    return [(f.topic, f.state) for f in results]


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch):
    monkeypatch.setattr("jaxperf.data.DEBIAN_FOLDER", Path("/nonexistent"))
    monkeypatch.delenv("JAXPERF_DATA", raising=False)
    monkeypatch.setattr(doctor, "LIMIT_S", 600.0)  # however slow this machine is
    for name in ("JAX_PLATFORMS", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def test_a_machine_that_runs_this_suite_is_usable_and_jax_has_a_process_of_its_own(monkeypatch, capsys):
    for name, value in (("PLATFORMS", "cpu"), ("NUM_CPU_DEVICES", "3")):
        monkeypatch.setenv(f"JAX_{name}", value)
    assert cli.main(["doctor"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    topics = {line.split()[1] for line in lines if line.split()[:1] in (["ok"], ["note"], ["warn"])}
    assert {"python", "packages", "driver", "jax", "data", "cores"} <= topics
    assert any("cpu: cpu:0 cpu, cpu:1 cpu, cpu:2 cpu" in line for line in lines)
    assert last.startswith("usable")


def test_something_broken_gives_status_1_and_its_command(monkeypatch, capsys):
    broken = JaxReport(error="JAX does not start with JAX_PLATFORMS=\x1b[31m")
    monkeypatch.setattr(doctor, "ask_jax", lambda: broken)
    assert cli.main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("broken"))
    assert "JAX_PLATFORMS=\\x1b[31m" in lines[at] and re.match(r" +-> \S+ -m pip install ", lines[at + 1])
    assert lines[-1] == "not usable: 1 problem must be fixed; see the command above"


def test_packages_that_are_missing_or_too_old_are_named(monkeypatch):
    wanted = {"jax": "99", "no-such-package": "1", "numpy": "1.25"}
    monkeypatch.setattr(doctor, "lower_bounds", lambda: wanted)
    monkeypatch.setattr(doctor.libraries, "CHAPTER", ("flax", "no_such_package"))
    broken = [result for result in doctor.package_results() if result.state == "broken"]
    assert ["jax is" in broken[0].text, "no-such-package is not installed" in broken[1].text] == [True, True]
    assert len(broken) == 2 and all(result.fix.startswith(sys.executable) for result in broken)
    *_, last = doctor.package_results()
    assert (last.topic, last.state) == ("chapter", "note")
    assert last.text.startswith("without no_such_package,") and last.fix.endswith("[chapter]'")


def test_a_setting_that_keeps_jax_from_starting_is_named_as_the_cause(monkeypatch):
    child = """
import os
if "XLA_FLAGS" in os.environ: os.abort()
if os.environ.get("JAX_PLATFORMS") == "nonsense": raise SystemExit("RuntimeError: unknown backend")
print("cpu\\ncpu:0 cpu")
"""
    monkeypatch.setattr(doctor, "CHILD", child)
    for name, value in (("XLA_FLAGS", "garbage"), ("JAX_PLATFORMS", "nonsense")):
        seen = ask_jax({**os.environ, "JAX_DISABLE_JIT": "0", name: value})
        assert (seen.error, seen.culprit) == (f"JAX does not start with {name}={value}", name)
        assert advise(monkeypatch, seen, Driver(missing=True))[-1].fix == f"unset {name}"
    neither = ask_jax({**os.environ, "XLA_FLAGS": "garbage", "JAX_PLATFORMS": "nonsense"})
    assert neither.error == "JAX was ended by signal 6: it said nothing" and not neither.culprit


def test_a_jax_that_cannot_be_imported_is_a_finding_too(tmp_path):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("raise ImportError('jaxlib is too old')")
    plain = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment = child_environment(plain | {"PYTHONPATH": str(tmp_path)})
    command = [sys.executable, "-m", "jaxperf", "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "ImportError: jaxlib is too old" in done.stdout and "not usable" in done.stdout


def test_a_crash_or_a_hang_is_a_finding(monkeypatch):
    for child, says in (
        ("import os; os.abort()", "signal 6"),
        ("raise SystemExit(3)", "it said nothing"),
        ("print('{}')", "not understood"),
        ("pass", "not understood"),
        ("import time; time.sleep(600)", "not ready after"),
    ):
        monkeypatch.setattr(doctor, "CHILD", child)
        monkeypatch.setattr(doctor, "LIMIT_S", 0.5 if "sleep" in child else 600.0)
        assert says in ask_jax({"PATH": os.defpath}).error


ROW = "NVIDIA H100, 81920, 1024, 0, 70.00, 700.00, 345, 1980, 570.86"


def fake_driver(folder, monkeypatch, output, status=0):
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_the_driver_tells_version_names_and_memory(tmp_path, monkeypatch):
    fake_driver(tmp_path, monkeypatch, ROW)
    assert ask_driver() == H100
    fake_driver(tmp_path, monkeypatch, f"{ROW}\n{ROW}")
    assert len(ask_driver().gpus) == 2


def not_reported(**missing):
    return replace(H100, gpus=(replace(H100.gpus[0], **missing),))


def test_a_driver_that_fails_is_described(tmp_path, monkeypatch):
    mismatch, none = "Failed to initialize NVML: version mismatch", "No devices were found"
    for output, status, expected in (
        ("NVIDIA-SMI has failed because it could not communicate with the driver", 9, Driver(missing=True)),
        (mismatch, 18, Driver(error=mismatch)),
        (none, 6, Driver(error=none)),
        (ROW.replace("81920, 1024", "[N/A], [N/A]"), 0, not_reported(total_bytes=0, used_bytes=0)),
        (ROW.replace("345, 1980", "[Not Supported], [N/A]"), 0, not_reported(clock_mhz=0, most_clock_mhz=0)),
    ):
        fake_driver(tmp_path, monkeypatch, output, status)
        assert ask_driver() == expected
    monkeypatch.setenv("PATH", "/nonexistent")
    assert ask_driver() == Driver(missing=True)


def advise(monkeypatch, seen, driver, **installed):
    """Findings on this driver and probe, with these packages installed and no other plugin."""
    monkeypatch.setattr(doctor, "ask_driver", lambda: driver)
    names = {k.replace("_", "-"): v for k, v in installed.items()}
    monkeypatch.setattr(doctor, "versions", lambda wanted: {k: v for k, v in names.items() if k in wanted})
    return list(doctor.device_results(seen))


def test_no_driver_is_no_fault_and_a_gpu_that_jax_uses_is_fine(monkeypatch):
    assert states(advise(monkeypatch, CPU, Driver(missing=True))) == [("driver", "note"), ("jax", "ok")]
    seen = JaxReport("gpu", ("gpu:0 NVIDIA H100",))
    assert {s for _, s in states(advise(monkeypatch, seen, H100))} == {"ok"}


INSTALL = f"{sys.executable} -m pip install -e '{checkout_folder()}[{{}}]'"
FITS = {"jaxlib": "1", "jax_cuda12_plugin": "1"}


@pytest.mark.parametrize(
    ("variables", "seen", "driver", "installed", "says", "fix"),
    [
        ({}, CPU, H100, {"jaxlib": "0.10.2"}, "installed for the CPU only", INSTALL.format("cuda12")),
        ({}, CPU, H100, {"jaxlib": "0.10.2", "jax_cuda12_plugin": "0.9.0"},
         "jax-cuda12-plugin 0.9.0 does not fit jaxlib 0.10.2", INSTALL.format("cuda12")),
        ({}, CPU, Driver("580.1", H100.gpus), {"jaxlib": "0.10.2", "jax_cuda13_plugin": "0.9.0"},
         "jax-cuda13-plugin 0.9.0 does not fit", INSTALL.format("cuda13")),
        ({}, JaxReport("cpu", warnings=("boom",)), H100, FITS, "the CPU: boom", INSTALL.format("cuda12")),
        ({"JAX_PLATFORMS": "cpu"}, CPU, H100, FITS, "JAX_PLATFORMS=cpu", "unset JAX_PLATFORMS"),
        ({"CUDA_VISIBLE_DEVICES": ""}, CPU, H100, FITS, "hides the GPU", "unset CUDA_VISIBLE_DEVICES"),
        ({}, JaxReport("gpu", ("gpu:0",)), Driver("470.10", H100.gpus), {}, "470.10 is too old", ""),
        ({}, JaxReport("gpu", ("gpu:0",)), Driver("570.86", (Gpu("H100", 80 << 30, 60 << 30),)), {},
         "another process", ""),
        ({}, JaxReport("gpu", ("gpu:0",)), Driver(error="version mismatch"), {}, "version mismatch", ""),
    ],
)  # fmt: skip
def test_what_keeps_jax_from_a_gpu_is_named(variables, seen, driver, installed, says, fix, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    [result] = [r for r in advise(monkeypatch, seen, driver, **installed) if r.state in ("warn", "note")]
    assert says in result.text and result.fix == fix


def test_without_full_data_debians_package_is_advised_and_a_wrong_folder_is_named(tmp_path, monkeypatch):
    mini, advice = doctor.data_results()
    assert mini.state == "ok" and "mini: 6,000 + 1,000" in mini.text
    assert (advice.state, advice.fix) == ("note", "apt-get install dataset-fashion-mnist")
    monkeypatch.setenv("JAXPERF_DATA", str(tmp_path / "nowhere"))
    first, mini = doctor.data_results()
    assert (first.state, first.fix, mini.state) == ("warn", "unset JAXPERF_DATA", "ok")
    assert "nowhere: no such folder" in first.text


def test_a_load_that_scatters_times_is_reported(monkeypatch):
    monkeypatch.setattr(doctor, "cores", lambda: 8)
    for load, found in ((3.0, []), (6.0, [("load", "warn")])):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert states(list(doctor.machine_results())) == [("cores", "ok"), *found]
