import os
import subprocess
import sys
from pathlib import Path


def test_another_plugin_may_warn_about_its_settings(tmp_path):
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
