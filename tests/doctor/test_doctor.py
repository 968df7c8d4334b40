"""The doctor: what it finds, what it advises for it, and that a broken part never takes it along."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from jaxperf import cli, doctor
from jaxperf import data as module
from jaxperf.doctor import check_result, checks, probe
from jaxperf.doctor.check_result import CheckResult, checkout_folder, report_lines
from jaxperf.doctor.checks import ALLOCATOR, uses_glibc
from jaxperf.doctor.probe import JaxReport, ask_jax
from jaxperf.errors import JaxperfError
from jaxperf.process import child_environment, program_name
from jaxperf.result.gpus import Driver, Gpu, ask_driver

CPU = JaxReport("cpu", ("cpu:0 cpu",))
H100 = Driver(
    "570.86",
    (
        Gpu(
            "NVIDIA H100", 80 << 30, 1 << 30,
            power_w=70.0, power_limit_w=700.0, clock_mhz=345, most_clock_mhz=1980,
        ),
    ),
)  # fmt: skip


def states(results: list[CheckResult]) -> list[tuple[str, str]]:
    return [(f.topic, f.state) for f in results]


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxperf.data.DEBIAN_FOLDER", Path("/nonexistent"))
    settings = ("JAX_PLATFORMS", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES", "JAX_COMPILATION_CACHE_DIR")
    for name in (*settings, *ALLOCATOR):
        monkeypatch.delenv(name, raising=False)


# --- the whole


def test_a_machine_that_runs_this_suite_is_usable_and_jax_is_asked_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("PLATFORMS", "cpu"), ("NUM_CPU_DEVICES", "3"), ("DEBUG_NANS", "1")):
        monkeypatch.setenv(f"JAX_{name}", value)
    assert cli.main(["doctor"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    topics = {line.split()[1] for line in lines if line.split()[:1] in (["ok"], ["note"], ["warn"])}
    assert {"python", "packages", "driver", "jax", "data", "cache", "allocator", "cores", "memory"} <= topics
    assert any("cpu: cpu:0 cpu, cpu:1 cpu, cpu:2 cpu" in line for line in lines)
    assert any("jax_debug_nans is on: measurements refuse to run" in line for line in lines)
    assert last.startswith("usable")


def test_what_is_required_is_read_in_a_locale_without_utf_8(tmp_path: Path) -> None:
    project = 'description = "zwölf"\ndependencies = ["jax>=1"]'
    (tmp_path / "pyproject.toml").write_text(f"[project]\n{project}\n", encoding="utf-8")
    program = (
        "import pathlib, sys; from jaxperf.doctor import check_result\n"
        "check_result.checkout_folder = lambda: pathlib.Path(sys.argv[1])\n"
        "print(*check_result.stated_requirements())"
    )
    env = child_environment() | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("jax>=1\n", "")


def test_something_broken_gives_status_1_and_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = JaxReport(trouble="JAX does not start with JAX_PLATFORMS=\x1b[31m")
    monkeypatch.setattr(doctor, "ask_jax", lambda: broken)
    assert cli.main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("broken"))
    assert "JAX_PLATFORMS=\\x1b[31m" in lines[at] and "pip install" in lines[at + 1]
    assert lines[-1] == "not usable: 1 problem must be fixed; see the command above"


def test_the_verdict_counts_only_what_matters() -> None:
    note, warn, broken = (CheckResult("x", s, "") for s in ("note", "warn", "broken"))  # type: ignore[arg-type]
    assert doctor.verdict([note]) == ("usable", 0)
    assert doctor.verdict([note, warn]) == ("usable; 1 thing could be better", 0)
    text = "not usable: 2 problems must be fixed; see the command above"
    assert doctor.verdict([warn, broken, broken]) == (text, 1)


def test_a_command_stands_alone_on_its_line() -> None:
    first, second = report_lines([CheckResult("jax", "warn", "slow", "pip install x")])
    assert first.split() == ["warn", "jax", "slow"]
    assert second.strip() == "-> pip install x"


# --- packages


def test_packages_that_are_missing_or_out_of_bounds_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [Requirement("jax>=99"), Requirement("no-such-package>=1"), Requirement("numpy")]
    monkeypatch.setattr(checks, "stated_requirements", lambda: wanted)
    broken = [f for f in checks.package_results() if f.state == "broken"]
    assert ["jax is" in broken[0].text, "no-such-package is not installed" in broken[1].text] == [True, True]
    assert len(broken) == 2 and all(f.fix.startswith(sys.executable) for f in broken)


def test_the_bounds_are_this_packages_own() -> None:
    plain, extra = ({r.name for r in check_result.stated_requirements(e)} for e in ("", "tfds"))
    assert {"jax", "flax", "tyro"} <= plain and "tensorflow-cpu" in extra
    assert not {"pytest", "tensorflow-cpu"} & plain and not {"pytest", "flax"} & extra


def test_an_installed_package_names_its_requirements_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not its own name: it may have come from a file, and an index may have another package of that name."""
    stated = ["jax>=0.10", 'jax[cuda12]>=0.10; extra == "cuda12"', 'pytest>=8; extra == "dev"']
    monkeypatch.setattr(check_result, "checkout_folder", lambda: None)
    monkeypatch.setattr(check_result.importlib.metadata, "requires", lambda name: stated)
    assert check_result.install_self() == f"{sys.executable} -m pip install 'jax>=0.10'"
    assert check_result.install_self("cuda12") == f"{sys.executable} -m pip install 'jax[cuda12]>=0.10'"


# --- JAX in its own process


def test_a_setting_that_keeps_jax_from_starting_is_named_as_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in for JAX that aborts as XLA does on a flag it does not know, or refuses a platform."""
    child = """
import os
if "XLA_FLAGS" in os.environ: os.abort()
if os.environ.get("JAX_PLATFORMS") == "nonsense": raise SystemExit("RuntimeError: unknown backend")
print('{"backend": "cpu", "devices": ["cpu:0 cpu"], "debug_flags": [], "faults": []}')
"""
    monkeypatch.setattr(probe, "CHILD", child)
    for name, value in (("XLA_FLAGS", "garbage"), ("JAX_PLATFORMS", "nonsense")):
        seen = ask_jax({**os.environ, "JAX_DISABLE_JIT": "0", name: value})
        assert (seen.trouble, seen.culprit) == (f"JAX does not start with {name}={value}", name)
        assert advise(monkeypatch, seen, Driver(missing=True))[-1].fix == f"unset {name}"
    neither = ask_jax({**os.environ, "XLA_FLAGS": "garbage", "JAX_PLATFORMS": "nonsense"})
    assert neither.trouble == "JAX was ended by signal 6: it said nothing" and not neither.culprit


@pytest.mark.thorough
def test_xla_flags_that_xla_refuses_are_the_cause() -> None:
    seen = ask_jax({"XLA_FLAGS": "garbage"})
    assert seen.culprit == "XLA_FLAGS" and "XLA_FLAGS=garbage" in seen.trouble


@pytest.mark.thorough
def test_a_flax_that_does_not_fit_jax_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flax").mkdir()
    (tmp_path / "flax/__init__.py").write_text("raise ImportError('no name Format in jax')")
    seen = ask_jax({"PYTHONPATH": str(tmp_path)})
    assert "flax.nnx cannot be imported with JAX" in seen.trouble and "no name Format" in seen.trouble
    [*_, check_result] = advise(monkeypatch, seen, Driver(missing=True))
    assert check_result.state == "broken" and "pip install --upgrade 'flax" in check_result.fix


def test_a_jax_that_cannot_be_imported_is_a_finding_too(tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("raise ImportError('jaxlib is too old')")
    plain = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-m", "jaxperf", "doctor"],
        env=child_environment(plain | {"PYTHONPATH": str(tmp_path)}),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "ImportError: jaxlib is too old" in done.stdout and "not usable" in done.stdout


def test_a_crash_or_a_hang_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    for child, says in (
        ("import os; os.abort()", "signal 6"),
        ("raise SystemExit(3)", "it said nothing"),
        ("print('{}')", "not understood"),
        ("pass", "not understood"),
        ("import time; time.sleep(600)", "not ready after"),
    ):
        monkeypatch.setattr(probe, "CHILD", child)
        monkeypatch.setattr(probe, "LIMIT_S", 0.5 if "sleep" in child else 60.0)
        assert says in ask_jax({"PATH": os.defpath}).trouble


# --- GPUs


def fake_nvml(**changes: object) -> types.SimpleNamespace:
    """A stand-in for NVIDIA's library: one GPU of 80 GiB."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def fail(value: int) -> object:
        def call(*_: object) -> None:
            raise NVMLError(value)

        return call

    parts: dict[str, object] = {
        "NVMLError": NVMLError,
        "NVML_ERROR_LIBRARY_NOT_FOUND": 12,
        "NVML_ERROR_DRIVER_NOT_LOADED": 9,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda i: i,
        "nvmlDeviceGetName": lambda handle: b"NVIDIA H100",
        "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(total=80 << 30, used=1 << 30),
        "nvmlDeviceGetPowerUsage": lambda handle: 70_000,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 345}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: {1: 1980}[kind],
        "nvmlSystemGetDriverVersion": lambda: "570.86",
    }
    failing = {name: fail(value) for name, value in changes.items() if isinstance(value, int)}
    return types.SimpleNamespace(**{**parts, **failing})


def test_the_driver_tells_version_names_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    assert ask_driver() == H100


def untold(**missing: int) -> Driver:
    return replace(H100, gpus=(replace(H100.gpus[0], **missing),))  # type: ignore[arg-type]


def test_a_gpus_clock_and_power_are_told_next_to_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = "345 of at most 1980 MHz, 70 of at most 700 W"
    assert H100.description() == ("NVIDIA driver 570.86", f"0: NVIDIA H100, {pace}")
    assert Driver("570.86", (Gpu("NVIDIA H100"),)).description() == ("NVIDIA driver 570.86", "0: NVIDIA H100")
    assert Driver(missing=True).description() == ()
    seen = JaxReport("gpu", ("gpu:0 NVIDIA H100",))
    [gpu] = [f for f in advise(monkeypatch, seen, H100) if f.topic == "gpu"]
    assert gpu.text.endswith(f"in use, {pace}")


def test_a_driver_that_fails_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    for changes, expected in (
        ({"nvmlInit": 12}, Driver(missing=True)),
        ({"nvmlInit": 9}, Driver(missing=True)),
        ({"nvmlInit": 18}, Driver(trouble="error 18")),
        ({"nvmlDeviceGetCount": 15}, Driver(trouble="error 15")),
        ({"nvmlDeviceGetMemoryInfo": 3}, untold(total_bytes=0, used_bytes=0)),
        (
            {"nvmlDeviceGetClockInfo": 3, "nvmlDeviceGetMaxClockInfo": 3},
            untold(clock_mhz=0, most_clock_mhz=0),
        ),
    ):
        monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(**changes))
        assert ask_driver() == expected


def advise(
    monkeypatch: pytest.MonkeyPatch, seen: JaxReport, driver: Driver, **installed: str
) -> list[CheckResult]:
    """Findings on this driver and probe, with these packages installed and no other plugin."""
    monkeypatch.setattr(checks, "ask_driver", lambda: driver)
    names = {k.replace("_", "-"): v for k, v in installed.items()}
    monkeypatch.setattr(checks, "versions", lambda wanted: {k: v for k, v in names.items() if k in wanted})
    return checks.device_results(seen)


def test_no_driver_is_no_fault_and_a_gpu_that_jax_uses_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert states(advise(monkeypatch, CPU, Driver(missing=True))) == [("driver", "note"), ("jax", "ok")]
    seen = JaxReport("gpu", ("gpu:0 NVIDIA H100",))
    assert {s for _, s in states(advise(monkeypatch, seen, H100))} == {"ok"}


@pytest.mark.parametrize(("driver", "state"), [(Driver(missing=True), "note"), (H100, "warn")])
def test_a_fault_of_this_jaxlib_is_told_and_matters_where_a_gpu_is(
    driver: Driver, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = "gpu" if driver.gpus else "cpu"
    seen = JaxReport(backend, (f"{backend}:0",), faults=("jaxlib 0.10.2: slow (jax-ml/jax#38806)",))
    (fault,) = [f for f in advise(monkeypatch, seen, driver) if f.topic == "fault"]
    assert (fault.state, fault.text) == (state, "on a GPU, jaxlib 0.10.2: slow (jax-ml/jax#38806)")


def test_a_gpu_with_a_jax_for_the_cpu_gets_the_extra_of_its_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    last = advise(monkeypatch, CPU, H100, jaxlib="0.10.2")[-1]
    assert last.state == "warn" and "CPU only" in last.text
    assert last.fix == f"{sys.executable} -m pip install -e '{checkout_folder()}[cuda12]'"
    odd = advise(monkeypatch, CPU, Driver("580.1", H100.gpus), jaxlib="0.10.2", jax_cuda13_plugin="0.9.0")[-1]
    assert "jax-cuda13-plugin 0.9.0 does not fit" in odd.text and odd.fix.endswith("[cuda13]'")


def test_a_plugin_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    last = advise(monkeypatch, CPU, H100, jaxlib="0.10.2", jax_cuda12_plugin="0.9.0")[-1]
    assert "jax-cuda12-plugin 0.9.0 does not fit jaxlib 0.10.2" in last.text
    fits = advise(monkeypatch, JaxReport("cpu", warnings=("boom",)), H100, jaxlib="1", jax_cuda12_plugin="1")
    assert "took the CPU: boom" in fits[-1].text


def test_a_variable_that_hides_the_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("JAX_PLATFORMS", "cpu"), ("CUDA_VISIBLE_DEVICES", "")):
        monkeypatch.setenv(name, value)
        last = advise(monkeypatch, CPU, H100, jaxlib="1", jax_cuda12_plugin="1")[-1]
        assert f"{name}={value}" in last.text and last.fix == f"unset {name}"
        monkeypatch.delenv(name)


def test_what_is_wrong_with_the_driver_or_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for driver, says in (
        (Driver("470.10", H100.gpus), "470.10 is too old"),
        (Driver("570.86", (Gpu("H100", 80 << 30, 60 << 30),)), "another process"),
        (Driver(trouble="version mismatch"), "version mismatch"),
    ):
        results = advise(monkeypatch, JaxReport("gpu", ("gpu:0",)), driver)
        assert [says in f.text for f in results if f.state == "warn"] == [True]


# --- data


def test_without_full_data_the_debian_package_is_advised() -> None:
    results = checks.data_results()
    assert [f.fix for f in results if f.state == "warn"] == ["apt-get install dataset-fashion-mnist"]
    assert results[-1].state == "ok" and "mini: 6,000 + 1,000" in results[-1].text


def test_a_folder_that_was_named_wrongly_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for named in (str(tmp_path / "nowhere"), "~nosuch/x"):
        monkeypatch.setenv("JAXPERF_DATA", named)
        first = checks.data_results()[0]
        assert (first.state, first.fix) == ("warn", "unset JAXPERF_DATA")
        assert first.text.startswith(f"{named}: no such folder")


def test_a_broken_data_package_and_a_damaged_subset_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged() -> None:
        raise JaxperfError("the subset is damaged")

    monkeypatch.setattr("jaxperf.data.mini_folder", damaged)
    last = checks.data_results()[-1]
    assert (last.state, last.text) == ("broken", "the subset is damaged")
    assert last.fix == f"git -C {checkout_folder()} checkout -- jaxperf/fashion_mnist_mini"
    monkeypatch.setitem(sys.modules, "jaxperf.data", None)  # as where NumPy is missing
    [only] = checks.data_results()
    assert only.state == "broken" and "cannot be imported" in only.text


def test_an_earlier_download_is_seen_by_its_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = module.OriginFile("name", 3, "", 0)
    monkeypatch.setattr(module, "download_folder", lambda: tmp_path)
    monkeypatch.setattr(module, "ORIGIN_FILES", (small,))
    for content, seen in ((b"12", False), (b"123", True)):
        (tmp_path / small.name).write_bytes(content)
        assert (f"download: kept in {tmp_path}" in [f.text for f in checks.data_results()]) == seen


# --- settings and machine


def test_the_compile_cache_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cache() -> CheckResult:
        return checks.settings_results(CPU)[0]

    assert cache().state == "note"
    (tmp_path / "entry").write_bytes(b"x" * 1000)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    assert cache().state == "ok" and "1 files, 1 kB" in cache().text
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "a b"))
    assert (cache().state, cache().fix) == ("warn", f"mkdir -p '{tmp_path / 'a b'}'")


@pytest.mark.skipif(not uses_glibc(), reason="another allocator than glibc's")
def test_the_allocator_command_sets_what_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    advised = checks.settings_results(CPU)[1].fix
    env = {"PATH": os.environ["PATH"], "MALLOC_TOP_PAD_": "1"}
    done = subprocess.run(
        ["sh", "-c", f"{advised}; env"], env=env, capture_output=True, text=True, check=True
    )
    expected = {**ALLOCATOR, "MALLOC_TOP_PAD_": "1"}
    assert {f"{k}={v}" for k, v in expected.items()} <= set(done.stdout.splitlines())
    for name, value in ALLOCATOR.items():
        monkeypatch.setenv(name, value)
    assert checks.settings_results(CPU)[1].state == "ok"


def test_debug_settings_that_are_on_are_named() -> None:
    debug = checks.settings_results(JaxReport("cpu", ("cpu:0",), ("jax_debug_nans",)))[-1]
    assert (debug.state, debug.fix) == ("warn", "unset JAX_DEBUG_NANS")


def test_a_containers_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cpu.max"
    assert checks.cpu_quota(path) == 0
    for text, expected in (("150000 100000\n", 1.5), ("max 100000\n", 0), ("", 0), ("1 0", 0)):
        path.write_text(text)
        assert checks.cpu_quota(path) == expected


def test_a_limit_or_a_load_that_scatters_times_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "cores", lambda: 8)
    monkeypatch.setattr(checks, "cpu_quota", lambda: 1.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 0.0, 0.0))
    results = checks.machine_results()
    assert states(results) == [("cores", "ok"), ("cores", "warn"), ("load", "warn"), ("memory", "ok")]
    assert results[1].fix.startswith("taskset -c ") and results[1].fix.endswith(f" {program_name()} run all")
