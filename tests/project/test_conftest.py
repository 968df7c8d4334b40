"""The marker `real`: skipping where the part is missing is fine by hand, a failure where CI demands it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

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
