"""Environments of peers: the right Python is found, and an installation is whole or leaves nothing."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxperf import cli
from jaxperf import process as exit_status
from jaxperf.errors import JaxperfError
from jaxperf.frameworks import command, environments
from jaxperf.frameworks.environments import (
    MARKER,
    PEERS,
    Peer,
    PeerEnvironment,
    look,
    named_interpreters,
    named_peers,
)
from jaxperf.frameworks.install import fitting, install

TOY = Peer(
    "toy",
    requires=(("toy==2+cpu", "numpy==1"), ("toy==2", "numpy==1")),
    pythons=("3.7", "3.6"),
    costs="a moment, 1 kB",
)

# A Python of version {version} whose environments install what {script} says and import what it says.
FAKE_PYTHON = """#!/bin/sh
case "$*" in
  *ensurepip*) echo {version} ;;
  "-m venv "*) mkdir -p "$3/bin" && cp {script} "$3/bin/python" && chmod +x "$3/bin/python"; > "$3/half" ;;
esac
"""
PIP = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
  *"pip "*) {pip} ;;
  *"import platform"*) {imports} ;;
esac
"""
GOOD = 'echo "Collecting toy"; echo "  Downloading https://index/toy-2-py3-none-any.whl (49.1 MB)"'
IMPORTS = 'echo "toy 2, numpy 1, Python 3.7.1"'


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put a fake python3.7 on PATH; gives the log of what its environments were asked."""
    monkeypatch.setenv("JAXPERF_PEERS", str(tmp_path / "peers"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")

    def make(pip: str = GOOD, imports: str = IMPORTS) -> Path:
        log, script = tmp_path / "log", tmp_path / "pip.sh"
        script.write_text(PIP.format(log=log, pip=pip, imports=imports))
        write(tmp_path / "path/python3.7", FAKE_PYTHON.format(version="3.7", script=script))
        return log

    return make


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def left(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "peers").glob("[!.]*"))


# --- names


def test_names_are_taken_by_word_or_comma_and_each_once() -> None:
    assert [p.name for p in named_peers(["torch,mxnet", "torch"])] == ["torch", "mxnet"]
    assert named_peers([]) == ()
    with pytest.raises(JaxperfError, match=r"^no peer 'pytorch'; did you mean 'torch'"):
        named_peers(["pytorch"])


# --- finding a Python


def test_pythons_are_found_on_path_then_with_pyenv_newest_first_the_running_one_first_of_its_version(
    tmp_path: Path, toy: object
) -> None:
    running = ".".join(platform.python_version_tuple()[:2])
    pythons = {"path/python3.7": "3.7", f"path/python{running}": running}
    pythons |= {f"pyenv/versions/3.{v}/bin/python": f"3.{v[0]}" for v in ("7.9", "7.16", "6.1", "5.2")}
    for name, version in pythons.items():
        write(tmp_path / name, FAKE_PYTHON.format(version=version, script="x"))
    of_pyenv = [tmp_path / f"pyenv/versions/3.{v}/bin/python" for v in ("7.16", "7.9", "6.1")]
    assert list(fitting(TOY)) == [tmp_path / "path/python3.7", *of_pyenv]
    first, *_, this, named = list(fitting(dataclasses.replace(TOY, pythons=("3.7", running))))[:5]
    assert (first, this) == (tmp_path / "path/python3.7", Path(sys.executable))
    assert named == tmp_path / f"path/python{running}"


def test_a_python_that_is_broken_or_another_is_skipped(tmp_path: Path, toy: object) -> None:
    for text in ("#!/bin/sh\nexit 1\n", "#!/bin/sh\necho 3.9\n", "#!/bin/sh\n", "not a program"):
        write(tmp_path / "path/python3.7", text)
        assert list(fitting(TOY)) == []


# --- installing


def test_an_installation_tells_its_steps_and_is_ready_in_the_end(
    tmp_path: Path, toy: Callable[..., Path]
) -> None:
    log, messages = toy(), list[str]()
    assert look(TOY).state == "missing"
    install(TOY, say=messages.append)
    environment = look(TOY)
    assert (environment.state, environment.detail) == ("ready", "toy 2, numpy 1, Python 3.7.1")
    assert environment.python == tmp_path / "peers/toy/bin/python"
    python = tmp_path / "path/python3.7"
    assert messages[0] == f"toy: installing with {python}; takes about a moment, 1 kB"
    assert messages[1] == "toy: toy-2-py3-none-any.whl (49.1 MB)"
    assert messages[-1].startswith("toy: ready after ")
    [asked] = [line for line in log.read_text().splitlines() if "pip" in line]
    assert asked.endswith("toy==2+cpu numpy==1")
    before = log.read_text().count("pip")
    install(TOY, say=messages.append)  # nothing to do
    assert log.read_text().count("pip") == before
    assert messages[-1] == "toy: already there (toy 2, numpy 1, Python 3.7.1)"


FAILURES = {
    "offline": (
        'echo "WARNING: NewConnectionError"; echo "ERROR: No matching distribution found for toy"; exit 1',
        IMPORTS,
        "toy: the package index cannot be reached; try again with a network",
    ),
    "not offered": (
        'echo "ERROR: No matching distribution found for toy==2"; exit 1',
        IMPORTS,
        "toy: no index offers toy==2 for this Python and machine",
    ),
    "full disk": ('echo "OSError: No space left on device"; exit 1', IMPORTS, "toy: no space left in"),
    "anything": ('echo "ERROR: it broke"; echo; exit 1', IMPORTS, "toy: installing failed: ERROR: it broke"),
    "silent": ("exit 7", IMPORTS, "toy: installing failed: 7"),
    "cannot be imported": (
        GOOD,
        'echo "libgfortran.so.3: missing" >&2; exit 1',
        "toy was installed, but importing toy fails: libgfortran.so.3: missing",
    ),
}


def test_a_failed_installation_is_one_line_and_leaves_nothing(
    tmp_path: Path, toy: Callable[..., Path]
) -> None:
    for pip, imports, line in FAILURES.values():
        toy(pip, imports)
        with pytest.raises(JaxperfError) as caught:
            install(TOY, say=lambda line: None)
        assert str(caught.value).startswith(line)
        assert "\n" not in str(caught.value)
        assert left(tmp_path) == []
        assert look(TOY).state == "missing"


def test_an_interrupted_installation_leaves_nothing_and_a_killed_one_is_cleared_away(
    tmp_path: Path, toy: Callable[..., Path]
) -> None:
    toy()

    def interrupt(line: str) -> None:
        if ".whl" in line:
            assert (tmp_path / "peers/toy/half").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install(TOY, say=interrupt)
    assert left(tmp_path) == []
    write(tmp_path / "peers/toy/bin/python", "#!/bin/sh\n")
    write(tmp_path / "peers/toy/lib/old", "")
    assert look(TOY).state == "missing"
    install(TOY, say=lambda line: None)
    assert look(TOY).state == "ready"
    assert not (tmp_path / "peers/toy/lib").exists()


def test_pins_that_no_index_has_give_way_to_the_next(tmp_path: Path, toy: Callable[..., Path]) -> None:
    refuse = 'case "$*" in *+cpu*) echo "ERROR: No matching distribution found for toy==2+cpu"; exit 1;; esac'
    toy(refuse)
    install(TOY, say=lambda line: None)
    assert json.loads((tmp_path / "peers/toy" / MARKER).read_text())["requires"] == ["toy==2", "numpy==1"]


def test_an_environment_of_other_pins_or_that_broke_is_rebuilt(
    tmp_path: Path, toy: Callable[..., Path]
) -> None:
    toy()
    install(TOY, say=lambda line: None)
    marker, messages = tmp_path / "peers/toy" / MARKER, list[str]()
    marker.write_text(json.dumps({"requires": ["toy==1"]}))
    assert (look(TOY).state, look(TOY).detail) == ("broken", "it holds toy==1")
    install(TOY, say=messages.append)
    assert messages[0] == "toy: rebuilding, because it holds toy==1"
    (tmp_path / "peers/toy/bin/python").unlink()
    assert look(TOY).state == "broken"
    assert "does not start" in look(TOY).detail
    for damage in ("", "[]", "{}", '{"requires": 3}', "\xff"):
        marker.write_bytes(damage.encode("latin-1"))
        assert look(TOY).state == "broken"


def test_another_installation_and_a_folder_that_cannot_be_written_are_one_line(
    tmp_path: Path, toy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy()
    (tmp_path / "peers").mkdir()
    with (tmp_path / "peers/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(JaxperfError, match=r"^another installation is running in"):
            install(TOY, say=lambda line: None)
    install(TOY, say=lambda line: None)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXPERF_PEERS", str(tmp_path / "file" / "peers"))
    with pytest.raises(JaxperfError, match=r"^cannot write to .*JAXPERF_PEERS names another folder"):
        install(TOY, say=lambda line: None)


# --- an interpreter of the user's own

ANSWERS = "#!/bin/sh\necho noise\necho '{answer}'\n"


def test_an_interpreter_that_has_the_framework_is_taken_with_its_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = write(tmp_path / "own/bin/python", ANSWERS.format(answer="torch 3, numpy 2, Python 3.14.1"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (str(python), "own/bin/python", "~/own/bin/python"):
        assert named_interpreters([f"torch={path}"]) == {
            "torch": PeerEnvironment("ready", python, "torch 3, numpy 2, Python 3.14.1")
        }
    assert named_interpreters([]) == {}


def test_it_is_asked_for_the_framework_and_sees_nothing_of_our_folder_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "torch.py", "__version__ = '9'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(environments, "PEERS", PEERS | {"absent": Peer("absent", (), (), "")})
    write(tmp_path / "absent.py", "__version__ = '9'")
    with pytest.raises(JaxperfError, match=r"ModuleNotFoundError: No module named 'absent'; name a Python"):
        named_interpreters([f"absent={sys.executable}"])
    stub = Peer("json", (), (), "")  # what every Python has, and has a version
    monkeypatch.setattr(environments, "PEERS", {"json": stub})
    environment = named_interpreters([f"json={sys.executable}"])["json"]
    assert environment.python == Path(sys.executable)
    assert environment.detail.startswith("json ")
    assert environment.detail.endswith(f"Python {platform.python_version()}")


REFUSED = {
    "{there}": "--peer-python is '{there}'; give NAME=PATH, as in torch=/usr/bin/python3",
    "={there}": "--peer-python is '={there}'; give NAME=PATH",
    "pytorch={there}": "no peer 'pytorch'; did you mean 'torch'?",
    "torch={folder}/none": "--peer-python torch={folder}/none: {folder}/none does not start: No such file",
    "torch={folder}/text": "--peer-python torch={folder}/text: {folder}/text does not start: ",
    "torch=/bin/true": "--peer-python torch=/bin/true: /bin/true is not a Python; name a Python",
    "torch={bare}": "--peer-python torch={bare}: importing torch fails: No module named 'torch'; name",
    "mxnet={there}": "--peer-python mxnet={there}: {there} is not a Python",
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_cannot_be_a_peer_is_one_line_and_no_section_runs(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("no program")
    places = {
        "folder": tmp_path,
        "there": write(tmp_path / "there", ANSWERS.format(answer="torch 3, numpy 2, Python 3.14.1")),
        "bare": write(tmp_path / "bare", "#!/bin/sh\necho \"No module named 'torch'\" >&2; exit 1\n"),
    }
    out = tmp_path / "out"
    arguments = ["run", "all", "--smoke", f"--peer-python={word.format(**places)}", f"--out={out}"]
    assert cli.main(arguments) == exit_status.USER_MISTAKE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error: {REFUSED[word].format(**places)}")
    assert shown.err.count("\n") == 1
    assert not out.exists()


def test_one_peer_has_one_interpreter(tmp_path: Path) -> None:
    python = write(tmp_path / "python", ANSWERS.format(answer="torch 3, numpy 2, Python 3.14.1"))
    with pytest.raises(JaxperfError, match=r"^--peer-python names torch twice"):
        named_interpreters([f"torch={python}"] * 2)


# --- the command


@pytest.fixture
def only_toys(monkeypatch: pytest.MonkeyPatch, toy: Callable[..., Path]) -> Callable[..., Path]:
    """Two peers, of which `late` finds no Python."""
    late = Peer("late", (("late==1",),), ("3.5",), "a moment")
    for module in (environments, command):
        monkeypatch.setattr(module, "PEERS", {"late": late, "toy": TOY})
    return toy


def test_the_command_says_what_is_there_and_what_is_missing(
    only_toys: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    only_toys()
    assert cli.main(["peers"]) == 0
    late, toy, where = capsys.readouterr().out.splitlines()
    assert late.startswith("late: missing, late needs Python 3.5 with venv and ensurepip, which")
    install = f"`{exit_status.program_name()} peers install toy`"
    assert toy == f"toy: missing, {install} installs it with {tmp_path / 'path/python3.7'}"
    assert str(tmp_path / "peers") in where


def test_a_peer_that_cannot_be_installed_does_not_stop_the_next(
    only_toys: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    only_toys()
    assert cli.main(["peers", "install"]) == 1
    shown = capsys.readouterr()
    assert [line.split(" ")[:2] for line in shown.err.splitlines()] == [["failed:", "late"]]
    assert "toy: ready after" in shown.out
    assert cli.main(["peers", "install", "toy"]) == 0
    assert cli.main(["peers"]) == 0
    assert "toy: ready, toy 2, numpy 1, Python 3.7.1" in capsys.readouterr().out


def test_a_wrong_word_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["instal"], ["install", "jax"], ["mxnet"]):
        assert cli.main(["peers", *arguments]) == exit_status.USER_MISTAKE
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("error: ")
        assert shown.err.count("\n") == 1


def test_by_default_environments_are_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAXPERF_PEERS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    if sys.platform == "linux":
        assert environments.root() == Path("/somewhere/jaxperf/peers")
    assert environments.root().name == "peers"
