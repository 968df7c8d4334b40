"""What a machine without a network is given: wheels that suffice, and the newest commit.

The wheels here are empty ones in a folder, the only place that the real pip and uv may look in.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from jaxperf.errors import JaxperfError

SCRIPT = Path(__file__).parents[2] / "tools" / "bundle.py"
spec = importlib.util.spec_from_file_location("bundle", SCRIPT)
assert spec and spec.loader
bundle: ModuleType = importlib.util.module_from_spec(spec)
sys.modules["bundle"] = bundle  # dataclasses look their module up
spec.loader.exec_module(bundle)

RUNNING = sys.version_info[1]
OTHER = f"3.{RUNNING + 1}"  # the target's Python is not this one
TARGET = bundle.Target(OTHER, 28, "x86_64")
ANY = "py3-none-any"
WHEELS = {  # name, version, tag: requirements
    ("toy", "2", ANY): ("base>=1", f'late; python_version >= "{OTHER}"', 'cuda; extra == "gpu"'),
    ("toy", "3", "cp38-cp38-manylinux2014_x86_64"): (),
    ("base", "1", ANY): (),
    ("base", "2", f"cp3{RUNNING + 1}-cp3{RUNNING + 1}-manylinux_2_17_x86_64"): (
        'gone; python_version < "3"',
    ),
    ("base", "2", f"cp3{RUNNING}-cp3{RUNNING}-manylinux_2_17_x86_64"): (),
    ("base", "3", f"cp3{RUNNING + 1}-cp3{RUNNING + 1}-manylinux_2_34_x86_64"): (),
    ("base", "4", f"cp3{RUNNING + 1}-cp3{RUNNING + 1}-macosx_11_0_arm64"): (),
    ("late", "1", ANY): ("later",),
    ("later", "1", ANY): (),
    ("cuda", "1", ANY): ("cuda_lib[all]",),
    ("cuda_lib", "1", ANY): ('cuda_part; extra == "all"',),
    ("cuda_part", "1", ANY): (),
    ("newer", "1", ANY): (),
    ("odd", "1", ANY): ("base<2", f'base>=2; python_version >= "{OTHER}"'),
}
PYTHONS = {"late": f">={OTHER}", "newer": f">=3.{RUNNING + 2}"}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    for (name, version, tag), requires in WHEELS.items():
        extras = {line.split('"')[1] for line in requires if "extra ==" in line}
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Python: {PYTHONS[name]}"] if name in PYTHONS else []
        lines += [f"Provides-Extra: {extra}" for extra in extras]
        lines += [f"Requires-Dist: {line}" for line in requires]
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
            wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
            wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            wheel.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture(autouse=True)
def no_network(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))


def wheels(
    lines: list[str], folder: Path, have: dict[str, str] | None = None, build: tuple[str, ...] = ()
) -> list[str]:
    collected = bundle.collect_wheels(lines, TARGET, have or {}, folder, build=build)
    assert collected == folder / "wheels"
    return sorted("-".join(path.name.split("-")[:2]) for path in collected.iterdir())


@pytest.mark.thorough
def test_the_wheels_are_the_targets_and_all_that_they_require_there(index: Path, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/base-1-py3-none-any.whl").write_text("of an earlier bundle")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/images").write_text("images")
    assert wheels(["toy"], tmp_path) == ["base-2", "late-1", "later-1", "toy-2"]
    [base] = (tmp_path / "wheels").glob("base-*")
    assert base.read_bytes() == (index / base.name).read_bytes()
    assert base.name == f"base-2-cp3{RUNNING + 1}-cp3{RUNNING + 1}-manylinux_2_17_x86_64.whl"
    bundle.write_sums(tmp_path)
    sums = dict(reversed(line.split("  ")) for line in (tmp_path / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {"data/images", *(f"wheels/{p.name}" for p in (tmp_path / "wheels").iterdir())}
    assert sums["data/images"] == hashlib.sha256(b"images").hexdigest()
    assert {path.name for path in tmp_path.iterdir()} == {"wheels", "data", "SHA256SUMS"}


@pytest.mark.thorough
def test_extras_are_followed_and_what_the_target_has_is_left_out(tmp_path: Path) -> None:
    have = {"cuda": "1", "late": "1", "base": "1", "other": "7"}
    assert wheels(["toy[gpu]"], tmp_path, have) == ["cuda_lib-1", "cuda_part-1", "later-1", "toy-2"]


@pytest.mark.thorough
def test_what_the_checkout_is_built_with_comes_even_if_the_target_has_it(tmp_path: Path) -> None:
    """pip builds in an environment of its own, which sees nothing of the target's."""
    have = {"late": "1", "later": "1", "toy": "2", "base": "2"}
    assert wheels(["toy"], tmp_path, have, build=("late",)) == ["late-1", "later-1"]


@pytest.mark.thorough
def test_what_the_target_has_too_old_comes_along(tmp_path: Path) -> None:
    assert wheels(["base>=2"], tmp_path, {"base": "1"}) == ["base-2"]


@pytest.mark.thorough
def test_what_no_index_has_or_what_does_not_fit_together_is_one_line(tmp_path: Path) -> None:
    wheel = tmp_path / "wheels/base-1-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_text("of an earlier bundle")
    for lines, have, says in (
        (["nowhere"], {}, "nowhere was not found in the provided package locations"),
        (["toy"], {"base": "9"}, "no version of base==9"),
        (["odd"], {}, "odd"),
        (["newer"], {}, f"newer==1 requires Python >=3.{RUNNING + 2}"),
    ):
        with pytest.raises(JaxperfError) as caught:
            wheels(lines, tmp_path, have)
        assert str(caught.value).startswith("uv finds no wheels: ") and says in str(caught.value)
        assert str(caught.value).endswith(f"; {bundle.HINT}") is bool(have)
        assert "\n" not in str(caught.value)
        assert [wheel] == [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_wrong_flag_is_one_line(tmp_path: Path) -> None:
    freeze = tmp_path / "freeze"
    freeze.write_text("jax @ file:///wheels/jax.whl\n")
    for flags, says in (
        ({"python": "2.7"}, r"^--python is '2\.7'; give a version such as 3\.12$"),
        ({"platform": "win_amd64"}, r"^--platform is 'win_amd64'; give a tag such as manylinux_2_28_x86_64$"),
        ({"have": tmp_path / "none"}, r"none cannot be read: No such file"),
        ({"have": freeze}, r"'jax @ file:///wheels/jax\.whl' is not NAME==VERSION; write it with `pip list"),
    ):
        with pytest.raises(JaxperfError, match=says):
            bundle.main(bundle.Config(out=tmp_path / "out", **flags))
        assert not (tmp_path / "out").exists()


def test_a_list_of_what_there_is_is_read_as_pip_prints_it(tmp_path: Path) -> None:
    (tmp_path / "have").write_text("pip==24.0\n\nTyping_Extensions==4.1\ntorch==2.13.0+cu130\n")
    have = bundle.read_have(tmp_path / "have")
    assert have == {"pip": "24.0", "typing-extensions": "4.1", "torch": "2.13.0"}


def test_everything_that_make_installs_is_asked_for() -> None:
    lines = bundle.requirements("cpu")
    assert {"jax>=0.10,<0.13", "pytest>=9.0"} <= set(lines)
    assert not any("cuda" in line for line in lines)
    for kind in ("cuda12", "cuda13"):
        [extra] = [line for line in bundle.requirements(kind) if line not in lines]
        assert extra.startswith(f"jax[{kind}]")
    build = "import hatchling.build as b; print('\\n'.join(b.get_requires_for_build_editable()))"
    asked = subprocess.run(
        [sys.executable, "-c", build], cwd=SCRIPT.parents[1], capture_output=True, text=True
    )
    assert {"hatchling>=1.25", *asked.stdout.split()} == set(bundle.build_requirements()), asked.stderr


def commit(root: Path, text: str) -> str:
    (root / "file").write_text(text)
    bundle.git("-C", str(root), "add", "file")
    author = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    bundle.git("-C", str(root), *author, "commit", "-qm", text)
    return str(bundle.git("-C", str(root), "rev-parse", "--short=12", "HEAD"))


def test_the_history_is_the_newest_commit_alone_and_can_be_cloned(tmp_path: Path) -> None:
    root, out, clone = tmp_path / "root", tmp_path / "a folder", tmp_path / "clone"
    bundle.git("init", "-q", str(root))
    commit(root, "one")
    for text in ("two", "three"):  # made again, it holds the next one
        newest = commit(root, text)
        assert bundle.collect_history(out, root) == newest
    bundle.git("clone", "-q", str(out / "jaxperf.git"), str(clone))
    assert bundle.git("-C", str(clone), "rev-parse", "--short=12", "HEAD") == newest
    assert bundle.git("-C", str(clone), "rev-list", "--count", "HEAD") == "1"
    assert (clone / "file").read_text() == "three"
    with pytest.raises(JaxperfError, match=r"out is no git checkout; clone one"):
        bundle.collect_history(tmp_path / "more", tmp_path / "out")
