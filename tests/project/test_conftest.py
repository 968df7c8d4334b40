import os
import subprocess
import sys
from pathlib import Path


def test_another_plugin_may_warn_about_its_settings(tmp_path):
    """Warnings are errors here; pytest-asyncio, or pytest-benchmark beside xdist, warn when pytest starts."""
    plugin = "import warnings\ndef pytest_configure(config): warnings.warn('set my option')\n"
    (tmp_path / "pytest_other.py").write_text(plugin)
    root, environment = Path(__file__).parents[2], {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_other"]
    command.append("tests/ground/test_errors.py")
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
