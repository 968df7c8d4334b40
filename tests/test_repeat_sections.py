"""Sections that are repeated have fewer cores than devices, on any host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import repeat_sections
from repeat_sections import Config

from jaxperf.errors import JaxperfError


def test_eight_devices_share_two_cores_and_one_core_is_each_sections_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host, chosen = set(range(8)), list[set[int]]()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: chosen[-1] if chosen else host)
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: chosen.append(set(cores)))
    monkeypatch.setattr(repeat_sections, "repeat", lambda name, config, cache: name != "hangs")
    sections = tuple(map(str, range(20)))
    assert repeat_sections.main(Config(sections, devices=8)) == 0
    assert chosen == [{0, 1}]
    chosen.clear()
    assert repeat_sections.main(Config(sections, one_core=True)) == 0
    assert chosen and all(len(cores) == 1 for cores in chosen)
    assert len({*map(frozenset, chosen)}) == len(chosen)
    with pytest.raises(JaxperfError, match="1 of 2 sections failed or hung"):
        repeat_sections.main(Config(("hangs", "ends")))


@pytest.mark.parametrize("onednn", [False, True])
def test_sections_that_convolve_with_onednn_have_no_cache(
    onednn: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[dict[str, str]] = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> SimpleNamespace:
        given.append(env)
        return SimpleNamespace(returncode=0, stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "the caller's")
    assert repeat_sections.repeat("hybridize", Config(onednn=onednn), "ours")
    [env] = given
    asked = env.get("JAXPERF_ONEDNN"), env.get("JAX_COMPILATION_CACHE_DIR")
    assert asked == (("1", None) if onednn else (None, "ours"))
