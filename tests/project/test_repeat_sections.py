"""Sections that are repeated have fewer cores than devices, on any host."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import repeat_sections
from repeat_sections import Config

from jaxperf.errors import JaxperfError


def test_the_search_for_deadlocks_gives_eight_devices_two_cores_or_each_section_one(
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


@pytest.mark.thorough
def test_a_section_is_run_again_in_its_process_and_a_failure_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As section 8.1: a script of two cells, which counts its runs."""
    program = """# %%
import sys
from pathlib import Path
from jaxperf.chapter.section import section
s = section("hybridize", devices=2, size=9, smoke={"size": 1})
# %%
import jax
assert s.size == 1 and len(jax.devices()) == 2
with Path(sys.argv[0]).with_name("runs").open("a") as runs:
    runs.write("x")
"""
    (tmp_path / "hybridize.py").write_text(program)
    monkeypatch.setattr(repeat_sections.catalogue, "folder", lambda: tmp_path)
    assert repeat_sections.repeat("hybridize", Config(times=3), str(tmp_path / "cache"))
    assert (tmp_path / "runs").read_text() == "xxx"
    (tmp_path / "hybridize.py").write_text(program + "assert not 'broken'\n")
    assert not repeat_sections.repeat("hybridize", Config(times=3), str(tmp_path / "cache"))
    assert (tmp_path / "runs").read_text() == "xxxx"
    assert "FAILED" in (output := capsys.readouterr().out) and "assert not 'broken'" in output
