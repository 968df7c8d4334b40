import os
import subprocess
import sys

import jax
import psutil

from jaxperf.measure.environment import current_environment
from jaxperf.result.machine import commit, versions


def test_every_field_says_something():
    environment = current_environment(data_source="full, from a folder")
    assert environment.python == ".".join(map(str, sys.version_info[:3]))
    assert environment.platform
    assert environment.cpu
    assert environment.versions["jax"] == jax.__version__
    assert {"jaxlib", "flax", "optax", "numpy"} <= set(environment.versions)
    assert versions(("jax", "no-such-package-here")) == {"jax": jax.__version__}
    assert environment.backend == jax.default_backend()
    assert len(environment.devices) == len(jax.devices())
    assert 1 <= environment.cores <= (os.cpu_count() or 1)
    assert environment.memory_bytes == psutil.virtual_memory().total
    assert environment.data_source == "full, from a folder"


def test_variables_and_settings_of_jax_that_change_speed_are_kept_and_others_are_not(monkeypatch):
    flags_set = {"XLA_FLAGS": "--a=b", "MALLOC_TOP_PAD_": "67108", "CUDA_VISIBLE_DEVICES": "0", "JAX_X": "1"}
    for name, value in {**flags_set, "SECRET_TOKEN": "x", "HOME_XLA_FLAGS": "y"}.items():
        monkeypatch.setenv(name, value)
    flags = current_environment().flags
    assert flags_set.items() <= flags.items()
    assert not {"SECRET_TOKEN", "HOME_XLA_FLAGS"} & set(flags)
    with jax.default_matmul_precision("highest"):
        assert current_environment().flags["jax_default_matmul_precision"] == "highest"
    assert current_environment().flags["jax_enable_x64"] == "False"


def test_several_cpu_devices_of_one_host_are_fake(monkeypatch):
    cpus = jax.devices("cpu")
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    for count in (1, 2):
        for ask in ("devices", "local_devices"):
            monkeypatch.setattr(jax, ask, lambda count=count: cpus[:count])
        environment = current_environment()
        assert environment.devices_are_fake is (count > 1)
        assert environment.devices == tuple(f"cpu:{i} cpu" for i in range(count))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert current_environment().devices_are_fake is False


def git(folder, *args):
    # Never the user's own checkout.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *who, *args], check=True, capture_output=True, env=environment)


def test_the_commit_is_marked_when_a_kept_file_changed(tmp_path):
    (tmp_path / "code.py").write_text("1")
    for words in (("init", "-q"), ("add", "code.py"), ("commit", "-q", "-m", "first")):
        git(tmp_path, *words)
    clean = commit(tmp_path)
    assert len(clean) == 12
    assert int(clean, 16) >= 0
    (tmp_path / "results.json").write_text("not a change of the code")
    assert commit(tmp_path) == clean
    (tmp_path / "code.py").write_text("2")
    assert commit(tmp_path) == f"{clean}+dirty"
    git(tmp_path, "commit", "-q", "-a", "-m", "second")
    assert len(commit(tmp_path)) == 12
    assert commit(tmp_path) != clean
