"""oneDNN's switch reaches a process only where it works, and never against the user's own flags."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jaxperf import onednn
from jaxperf.onednn import SWITCH, with_onednn, without_onednn


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "_installed", lambda: True)
    monkeypatch.setattr(onednn, "_works", lambda: True)


def test_the_switch_follows_the_users_flags_and_all_else_stays(works: None) -> None:
    switch = " ".join(SWITCH)
    assert with_onednn({"A": "b"}) == {"A": "b", "XLA_FLAGS": switch}
    assert with_onednn({"XLA_FLAGS": "--x=1"}) == {"XLA_FLAGS": f"--x=1 {switch}"}
    for flags in ("", "--x=1", "--x=1 --y=2"):
        assert without_onednn(with_onednn({"XLA_FLAGS": flags})["XLA_FLAGS"]) == flags


def test_what_the_user_has_set_about_it_stays(works: None) -> None:
    for flag in ("--xla_cpu_use_onednn=false", "--xla_cpu_experimental_ynn_fusion_type=-reduce", *SWITCH):
        environment = {"XLA_FLAGS": f"--x=1 {flag}"}
        assert with_onednn(environment) == environment


def test_it_needs_x86_and_a_jaxlib_that_computes_well_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, processor, found in (
        ("0.12.0.1", "x86_64", True), ("0.12.0", "AMD64", True), ("1.0", "x86_64", True),
        ("0.10.2", "x86_64", False), ("0.12.0", "aarch64", False), ("", "x86_64", False),
    ):  # fmt: skip
        versions = {"jaxlib": version} if version else {}
        monkeypatch.setattr(onednn.machine, "versions", lambda _, versions=versions: versions)
        monkeypatch.setattr(onednn.platform, "machine", lambda processor=processor: processor)
        assert onednn._installed() is found, (version, processor)


def test_flags_that_end_a_process_or_change_nothing_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "_installed", lambda: True)
    for switch in (("--xla_no_such_flag=1",), ()):  # XLA aborts; the probe finds no convolution of oneDNN's
        monkeypatch.setattr(onednn, "SWITCH", switch)
        onednn._works.cache_clear()
        assert with_onednn({"A": "b"}) == {"A": "b"}
    onednn._works.cache_clear()


def test_where_it_is_given_convolutions_and_their_gradients_are_right() -> None:
    """On this machine: with jaxlib 0.12 the probe passes, before that nothing is given."""
    given = with_onednn({})
    assert bool(given) is onednn._installed()
    if given:
        environment = {**os.environ, **given, "JAX_PLATFORMS": "cpu"}
        assert (
            subprocess.run([sys.executable, "-c", onednn.PROBE], env=environment, check=False).returncode == 0
        )
