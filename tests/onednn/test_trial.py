"""oneDNN reaches a process only where it works, and never against what the user has set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxperf.onednn import trial
from jaxperf.onednn.trial import BY_NAME, SWITCH, with_onednn, without_onednn


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_jaxlib", lambda: (0, 12))
    monkeypatch.setattr(trial, "_failure", lambda variables: "")


def test_the_switch_follows_the_users_flags_and_all_else_stays(newest: None) -> None:
    switch = " ".join(SWITCH)
    assert with_onednn({"A": "b"}) == {"A": "b", "XLA_FLAGS": switch, BY_NAME: "1"}
    assert with_onednn({"XLA_FLAGS": "--x=1"}) == {"XLA_FLAGS": f"--x=1 {switch}", BY_NAME: "1"}
    for flags in ("", "--x=1", "--x=1 --y=2"):
        assert without_onednn(with_onednn({"XLA_FLAGS": flags})["XLA_FLAGS"]) == flags


def test_before_there_is_a_switch_a_variable_asks_for_it_by_name(
    newest: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_jaxlib", lambda: (0, 10))
    assert with_onednn({"XLA_FLAGS": "--x=1"}) == {"XLA_FLAGS": "--x=1", BY_NAME: "1"}


def test_where_it_does_not_work_nothing_changes(newest: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_failure", lambda variables: "it failed")
    assert with_onednn({"A": "b"}) == {"A": "b"}
    assert trial.refusal({"A": "b"}) == "it failed"


def test_what_the_user_has_set_about_it_stays(newest: None, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--xla_cpu_use_onednn=false", "--xla_cpu_experimental_ynn_fusion_type=-reduce", *SWITCH)
    users = [{"XLA_FLAGS": f"--x=1 {flag}"} for flag in flags]
    for version in ((0, 12), (0, 10)):
        monkeypatch.setattr(trial, "_jaxlib", lambda version=version: version)
        for environment in (*users, {"JAX_COMPILATION_CACHE_DIR": "somewhere"}):
            assert with_onednn(environment) == environment


@pytest.mark.parametrize(
    ("jaxlib", "variables", "asked"),
    [
        ((0, 12), {BY_NAME: "1", "XLA_FLAGS": " ".join(("--x=1", *SWITCH))}, True),
        ((0, 10), {BY_NAME: "1"}, True),
        ((0, 12), {BY_NAME: "1"}, False),  # names are for a jaxlib without the switch
        ((0, 10), {BY_NAME: "1", "XLA_FLAGS": " ".join(SWITCH)}, False),
        ((0, 10), {}, False),
        (None, {BY_NAME: "1"}, False),
    ],
)
def test_an_environment_asks_only_a_jaxlib_of_its_own_kind(
    jaxlib: tuple[int, int] | None, variables: dict[str, str], asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_jaxlib", lambda: jaxlib)
    for name in (BY_NAME, "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert trial.requested() is asked


def test_it_needs_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, processor, loaded in (
        ("0.12.0.1", "x86_64", (0, 12)), ("0.10.2", "AMD64", (0, 10)), ("1.0", "x86_64", (1, 0)),
        ("0.12.0", "aarch64", None), ("", "x86_64", None),
    ):  # fmt: skip
        versions = {"jaxlib": version} if version else {}
        monkeypatch.setattr(trial.machine, "versions", lambda _, versions=versions: versions)
        monkeypatch.setattr(trial.platform, "machine", lambda processor=processor: processor)
        assert trial._jaxlib() == loaded, (version, processor)


@pytest.mark.thorough
def test_flags_that_change_nothing_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag is taken back, so XLA gives the convolution to its default library, and the trial fails."""
    monkeypatch.setattr(trial, "_jaxlib", lambda: (0, 12))
    on = "--xla_cpu_experimental_onednn_custom_call="
    monkeypatch.setattr(trial, "SWITCH", (f"{on}true", f"{on}false"))
    assert with_onednn({"A": "b"}) == {"A": "b"}


@pytest.mark.thorough
@pytest.mark.skipif((trial._jaxlib() or (0,)) < trial.FIRST, reason="XLA has the switch from jaxlib 0.12 on")
def test_under_the_switch_every_transformation_and_export_gives_the_native_numbers(tmp_path: Path) -> None:
    import switched

    path = tmp_path / "answers.npz"
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    flags = " ".join(filter(None, (environment.get("XLA_FLAGS"), *SWITCH)))
    done = subprocess.run(
        [sys.executable, switched.__file__, str(path)], env={**environment, "XLA_FLAGS": flags, BY_NAME: "1"},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = dict(np.load(path))
    # the convolution and the gradient of its images; XLA chooses who computes the products
    assert (loaded.pop("calls")[0], switched.calls()) == (2, (0, 0))
    for name, wanted in switched.answers():
        close = 2e-2 if "float16" in name else 1e-5  # of the largest value
        for i, b in switched.flat(wanted).items():
            a = loaded.pop(f"{name}/{i}")
            np.testing.assert_allclose(a, b, rtol=0, atol=close * np.abs(b).max(initial=1e-3), err_msg=name)
    assert not loaded
