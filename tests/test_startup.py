"""A JAX outside jaxperf's bounds: one line says so, once in a run, and the run goes on."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import pytest

from jaxperf import startup
from jaxperf.chapter.run_sections import child_environment
from jaxperf.doctor import check_result


@pytest.fixture(autouse=True)
def without_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(startup.VERSION_NOTED, "")  # so that it is taken away after the test
    monkeypatch.delenv(startup.VERSION_NOTED)


def lines_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: str
) -> list[str]:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "jax" else real(name))
    startup.say_if_jax_is_untested()
    return capsys.readouterr().err.splitlines()


def test_a_jax_outside_the_bounds_is_named_once_in_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (bounds,) = (r.specifier for r in check_result.stated_requirements() if r.name == "jax")
    assert lines_printed(monkeypatch, capsys, "99.0") == [
        f"note: jaxperf is tested with JAX {bounds}, and this is JAX 99.0; it goes on"
    ]
    assert lines_printed(monkeypatch, capsys, "99.0") == []


@pytest.mark.parametrize(
    ("version", "lines"), [("0.9.2", 1), ("0.13.0.dev20261120", 1), ("0.10.2", 0), ("0.12.0.1", 0)]
)
def test_pre_releases_count_as_what_they_precede(
    version: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(lines_printed(monkeypatch, capsys, version)) == lines


def test_the_bounds_of_an_installed_package_are_its_metadata(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_result, "checkout_folder", lambda: None)
    monkeypatch.setattr(
        importlib.metadata, "requires", lambda _: ["jax>=1,<2", "jax[cuda12]>=1; extra == 'c'"]
    )
    assert lines_printed(monkeypatch, capsys, "1.5") == []
    (line,) = lines_printed(monkeypatch, capsys, "2.0")
    assert "<2,>=1" in line


def test_a_run_says_it_first_and_its_sections_do_not_repeat_it() -> None:
    """`run` finds that no such section is known, after the line; a child inherits that it was said."""
    program = (
        "import importlib.metadata as m, os, sys\n"
        "real = m.version; m.version = lambda n: '99.0' if n == 'jax' else real(n)\n"
        "from jaxperf import startup\n"
        "from jaxperf.cli import command_line as cli\n"
        "status = cli.main(['run', 'nonsense']); startup.import_jax()\n"
        "print(status, os.environ[startup.VERSION_NOTED])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=child_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["2", "99.0"]
    first, *others = done.stderr.splitlines()
    assert first.startswith("note: jaxperf is tested with JAX") and len(others) == 1


def test_without_jax_the_import_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    startup.say_if_jax_is_untested()
    assert capsys.readouterr().err == "" and startup.VERSION_NOTED not in os.environ
