"""The marker `real`: skipping where the part is missing is fine by hand, a failure where CI demands it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

SAMPLE = """
import os, pytest
@pytest.mark.real
def test_part(): pytest.skip("no such part")
@pytest.mark.real
@pytest.mark.skipif(True, reason="no such part")
def test_mark(): pass
def test_other(): pytest.skip("not a real part")
@pytest.mark.real
def test_there(): assert os.environ["XDG_CACHE_HOME"].endswith("cache")
"""
DEVICES = """
import jax, pytest
def test_one(): assert len(jax.devices()) == 1
@pytest.mark.usefixtures("several_devices")
def test_several(): pass
"""


def run(
    folder: Path, source: str, *, require: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    shutil.copy(Path(__file__).parents[1].joinpath("conftest.py"), folder)
    (folder / "test_sample.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = real: needs a part\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"],
        cwd=folder,
        env=os.environ | {"JAXPERF_REQUIRE_REAL": require} | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("require", "counts", "status"),
    [("", "1 passed, 4 skipped", 0), ("1", "1 failed, 1 passed, 1 skipped, 2 errors", 1)],
)
def test_real_tests_and_whole_files_that_skip_fail_only_where_they_are_demanded(
    tmp_path: Path, require: str, counts: str, status: int
) -> None:
    (tmp_path / "test_whole.py").write_text('import pytest\npytest.importorskip("no_such_module")\n')
    done = run(tmp_path, SAMPLE, require=require)
    assert (done.returncode, counts in done.stdout) == (status, True), done.stdout
    assert ("no such part" in done.stdout) == (require == "1")
    assert ("test_whole.py: must not be skipped" in done.stdout) == (require == "1")


def test_tests_have_eight_devices_or_as_many_as_asked_for_or_a_gpu() -> None:
    wanted = int(os.environ.get("JAXPERF_TEST_DEVICES", "8"))
    assert jax.default_backend() != "cpu" or jax.device_count() == wanted


@pytest.mark.thorough
def test_a_machine_with_one_device_can_be_rehearsed(tmp_path: Path) -> None:
    done = run(tmp_path, DEVICES, JAX_PLATFORMS="cpu", JAXPERF_TEST_DEVICES="1")
    assert (done.returncode, "1 passed, 1 skipped" in done.stdout) == (0, True), done.stdout


def test_caches_of_the_user_are_out_of_reach() -> None:
    assert Path.home() / ".cache" not in Path(os.environ["XDG_CACHE_HOME"]).parents


def test_programs_are_compiled_once_for_all_processes_of_a_run(tmp_path: Path) -> None:
    folder = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.jit(lambda x: x * 123.0 + 456.0)(jax.numpy.ones(789)).block_until_ready()
    shared = os.environ.get("JAXPERF_COMPILED")  # CI's steps share theirs
    assert folder == Path(shared) if shared else folder.parent == Path(os.environ["XDG_CACHE_HOME"]).parent
    assert any(folder.iterdir())


def test_the_compile_cache_can_be_switched_off(compiles_anew: None) -> None:
    def never_kept(x: jax.Array) -> jax.Array:
        return x * 321.0 + 654.0

    jax.jit(never_kept)(jax.numpy.ones(987)).block_until_ready()
    names = [path.name for path in Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).iterdir()]
    assert not [name for name in names if "never_kept" in name]


def test_another_plugin_may_warn_about_its_settings(tmp_path: Path) -> None:
    """Warnings are errors here; pytest-asyncio, or pytest-benchmark beside xdist, warn when pytest starts."""
    (tmp_path / "pytest_other.py").write_text(
        "import warnings\ndef pytest_configure(config): warnings.warn('set my option')\n"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_other"]
    done = subprocess.run(
        [*command, "tests/ground/test_errors.py"], cwd=root, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
