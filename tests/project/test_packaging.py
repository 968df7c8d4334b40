import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import children
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_the_light_core_needs_five_packages_with_lower_bounds_alone():
    requirements = [Requirement(line) for line in PROJECT["dependencies"]]
    assert [r.name for r in requirements] == ["jax", "numpy", "scipy", "psutil", "rich"]
    lines = [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]
    for requirement in map(Requirement, lines):
        if requirement.name in ("jax", *(r.name for r in requirements)):
            assert [bound.operator for bound in requirement.specifier] == [">="], requirement


def test_the_core_imports_nothing_but_what_it_requires():
    """With the packages of every extra hidden, all that is not the chapter's can be imported."""
    program = """
import importlib, pkgutil, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
import jaxperf
for module in pkgutil.walk_packages(jaxperf.__path__, "jaxperf.", onerror=lambda name: None):
    if module.name.split(".")[1] not in CHAPTER:
        importlib.import_module(module.name)
        print(module.name)
"""
    hidden = "flax optax orbax chex matplotlib nbformat safetensors flatbuffers tyro platformdirs packaging"
    hidden += " pynvml filelock jinja2 IPython tensorflow"
    chapter = "chapter section models parallel checkpoints experiments __main__ pytest_plugin"
    program = program.replace("HIDDEN", repr(hidden.split())).replace("CHAPTER", repr(chapter.split()))
    done = children.run("-c", program, folder=ROOT)
    assert done.returncode == 0, done.stderr
    tools = {f"jaxperf.{name}" for name in ("watch.session", "measure.timing", "compare.gate", "doctor")}
    assert tools <= set(done.stdout.split())


def built(kind, folder):
    pytest.importorskip("hatchling")
    code = f"import sys, hatchling.build as b; print(b.build_{kind}(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True, capture_output=True)
    [path] = folder.glob("jaxperf-*")
    return path


@pytest.mark.real
def test_the_wheel_holds_the_package_the_scripts_and_the_data(tmp_path):
    packed = set(zipfile.ZipFile(built("wheel", tmp_path)).namelist())
    sources = [*(ROOT / "jaxperf").rglob("*"), *(ROOT / "experiments").rglob("*")]
    files = [path for path in sources if path.is_file() and "__pycache__" not in path.parts]
    names = (str(path.relative_to(ROOT)) for path in files)
    expected = {name.replace("experiments/", "jaxperf/experiments/", 1) for name in names}
    assert expected <= packed and "jaxperf/py.typed" in packed
    about = f"jaxperf-{PROJECT['version']}.dist-info"
    assert [name for name in packed - expected if not name.startswith(about)] == []


# --- make

FAKE_PYTHON = """#!/bin/sh
echo "$*" >> "{log}"
case "$*" in
  *"pip install"*) test ! -e "{folder}/no-network" ;;
  "-m venv"*) echo "venv $*" ;;
  "-m jaxperf run"*) exit $(cat "{folder}/status" 2>/dev/null || echo 0) ;;
esac
"""


@pytest.fixture
def tree(tmp_path):
    """A checkout's Makefile with an environment whose Python only writes down what it is asked."""
    for name in ("Makefile", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    (tmp_path / ".venv/pyvenv.cfg").touch()
    write_script(python, FAKE_PYTHON.format(log=tmp_path / "log", folder=tmp_path))
    return tmp_path


def write_script(path, text):
    path.write_text(text)
    path.chmod(0o755)


def make(tree, *arguments, kind="cpu", path=""):
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON")}
    env["PATH"] = path + env["PATH"]
    arguments = (*arguments, f"KIND={kind}") if kind else arguments
    return subprocess.run(["make", *arguments], cwd=tree, env=env, capture_output=True, text=True)


def asked(tree):
    log = tree / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


def installs(tree, *arguments, **options):
    assert make(tree, "lint", *arguments, **options).returncode == 0
    return [line for line in asked(tree) if "pip install" in line]


def mistakes(tree, *arguments, **options):
    done = make(tree, *arguments, **options)
    assert done.returncode != 0
    return [line for line in done.stderr.splitlines() if not line.startswith(("make", "pyenv"))]


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


@needs_make
def test_make_installs_once_and_again_when_the_bounds_change(tree, monkeypatch):
    monkeypatch.setenv("VENV", "of-something-else")
    assert len(installs(tree, "-j4", "types")) == 1
    assert installs(tree) == []
    later = (tree / ".venv/.installed-cpu").stat().st_mtime + 10
    os.utime(tree / "pyproject.toml", (later, later))
    assert len(installs(tree)) == 1


@needs_make
def test_an_installation_that_fails_leaves_no_stamp(tree):
    (tree / "no-network").touch()
    assert make(tree, "test").returncode != 0
    assert not list((tree / ".venv").glob(".installed*"))
    assert not any("pytest" in line for line in asked(tree))
    (tree / "no-network").unlink()
    assert make(tree, "test").returncode == 0
    assert any("-m pytest -n 2" in line for line in asked(tree))


@needs_make
def test_what_cannot_be_installed_is_one_clear_line(tree):
    kinds = "it is cpu, cuda12 or cuda13, by default what this machine has"
    assert mistakes(tree, "run", kind="cuda") == [f"error: KIND is 'cuda'; {kinds}"]
    no_folder = "error: no folder some wheels; 'make bundle' makes one where there is a network"
    assert mistakes(tree, "test", "WHEELS=some wheels") == [no_folder]
    assert not asked(tree)
    (tree / "wheels").mkdir()
    (tree / "no-network").touch()
    [line] = mistakes(tree, "run", "WHEELS=wheels")  # wheels of another Python
    assert line.startswith("error: wheels lacks wheels that ") and "docs/offline.md" in line
    assert not any("jaxperf" in line for line in asked(tree) if "pip" not in line)
    done = make(tree, "test", "VENV=.", f"PYTHON={sys.executable}")
    assert done.returncode != 0 and "not a virtual environment" in done.stderr
    assert (tree / "Makefile").exists()  # such a folder is never cleared


@needs_make
def test_an_old_or_missing_python_is_one_clear_line(tree):
    shutil.rmtree(tree / ".venv")
    write_script(tree / "old", '#!/bin/sh\ncase "$2" in *version_info*) exit 1;; esac\n')
    write_script(tree / "broken", "#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n")
    for python, says in (
        ("./old", "older than Python 3.11"), ("./none", "no ./none"), ("./broken", "./broken does not start")
    ):  # fmt: skip
        [line] = mistakes(tree, "test", f"PYTHON={python}")
        assert says in line and "make PYTHON=" in line
    assert not (tree / ".venv").exists()


@needs_make
def test_make_run_builds_the_book_even_from_what_is_left_of_a_failed_run(tree):
    for status, builds in (("0", True), ("1", True), ("2", False)):
        (tree / "status").write_text(status)
        done = make(tree, "run", "ARGS=hybridize --smoke")
        assert (done.returncode == 0) == (status == "0")
        lines = asked(tree)
        assert "-m jaxperf run --out results hybridize --smoke" in lines
        assert any("-m sphinx" in line and "book_results" in line for line in lines) == builds
