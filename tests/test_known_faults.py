import subprocess
from pathlib import Path

import pytest

from jaxperf import hlo
from jaxperf.known_faults import FAULTS, faults_of

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "fixtures" / "programs"  # shortened from what each version compiled
BY_ISSUE = {fault.issue.split(",")[0]: fault for fault in FAULTS}


PATH, ROWS, RANK_7, SLICES, SHIFT = (
    (PROGRAMS / f"{name}.hlo").read_text()
    for name in ("path_jax_0_11_1", "rows_jax_0_10_2", "rank_7_jax_0_10_2", "slices_jax_0_11_0",
                 "shift_jax_0_12")
)  # fmt: skip
SCATTER = (ROOT / "tests" / "plan" / "programs" / "scatter_jax_0_12.hlo").read_text()

# issue, the program, the instruction; and the change after which the fault no longer hits it
RECORDED = [
    ("jax-ml/jax#40101", PATH, "write", ("f32[1]{0}", "f32[64]{0}")),
    ("jax-ml/jax#40101", PATH, "write", ("20000", "2000")),
    ("jax-ml/jax#39103", ROWS, "product", ("32769", "16384")),
    ("jax-ml/jax#39103", ROWS, "product", ("__ynn_fusion", "__onednn")),
    ("jax-ml/jax#39257", RANK_7, "total", ("2,2,8,8,8]", "2,2,8,8]")),
    ("jax-ml/jax#37465", SLICES, "total", ("calls=%wrapped_slice", "calls=%no")),
    ("openxla/xla#49176", SHIFT, "write", ("dynamic-update-slice(%seen", "dynamic-update-slice(%p0")),
    ("jax-ml/jax#38806", SCATTER, "", ("f32[", "f64[")),
    ("openxla/xla#26371", SCATTER.replace("f32[", "bf16["), "", ("bf16[", "f32[")),
]


@pytest.mark.parametrize(("issue", "text", "name", "change"), RECORDED, ids=lambda value: str(value)[:20])
def test_a_pattern_finds_its_instruction_and_nothing_after_the_change(issue, text, name, change):
    assert change[0] in text
    hits = BY_ISSUE[issue].hits(hlo.parse(text))
    assert hits and (not name or {i.name for i in hits} == {name})
    assert BY_ISSUE[issue].hits(hlo.parse(text.replace(*change))) == []


def test_every_pattern_has_a_recorded_program_and_the_line_of_a_hit_is_that_of_the_program():
    assert {f.issue.split(",")[0] for f in FAULTS if f.pattern} == {issue for issue, *_ in RECORDED}
    module = hlo.parse(PATH)
    (hit,) = BY_ISSUE["jax-ml/jax#40101"].hits(module)
    assert module.frames(hit)[0][:2] == ("a.py", 12)


@pytest.mark.parametrize(
    ("issue", "version", "has"),
    [
        ("jax-ml/jax#40101", "0.11.0", False), ("jax-ml/jax#40101", "0.11.1", True),
        ("jax-ml/jax#40101", "0.11.2", False), ("jax-ml/jax#40101", "0.11.1.dev1", True),
        ("jax-ml/jax#31284", "0.7.1", True), ("jax-ml/jax#31284", "0.7.2", False),
        ("jax-ml/jax#38806", "0.10.2", True), ("jax-ml/jax#38806", "0.11.1", False),
        ("openxla/xla#26371", "0.5.3", True), ("openxla/xla#26371", "9.9.9", True),
    ],
)  # fmt: skip
def test_versions(issue, version, has):
    assert BY_ISSUE[issue].in_version(version) == has


def test_a_fault_of_one_platform_and_card_is_not_one_of_others():
    issues = {f.issue for f in faults_of("0.10.2", "cpu")}
    assert "openxla/xla#26371" not in issues and "jax-ml/jax#39103" in issues
    a100 = {f.issue for f in faults_of("0.10.2", "gpu", "NVIDIA A100-SXM4-80GB")}
    h100 = {f.issue for f in faults_of("0.10.2", "cuda", "NVIDIA H100 80GB HBM3")}
    assert "openxla/xla#26371" in a100 - h100
    assert not a100 & {"jax-ml/jax#39103"}


# --- with the versions themselves

DUMP = """
import sys
sys.path[:0] = [{folder!r}, {root!r}]
import jax
import reported
jit = jax.jit
if {catch}:
    def jitted(fn, **options):
        def call(*args):
            print(jit(fn, **options).lower(*args).compile().as_text())
            raise SystemExit
        return call
    jax.jit = jitted
    reported.{probe}()
fn, *arguments = reported.{probe}()
print(fn.lower(*arguments).compile().as_text())
"""


@pytest.mark.real
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("issue", "faulty", "catch"),
    [
        ("jax-ml/jax#40101", "0.11.1", False),
        ("jax-ml/jax#37465", "0.11.0", False),
        ("jax-ml/jax#39103", "0.10.2", True),
    ],
)
def test_the_version_compiles_what_the_pattern_expects(issue, faulty, catch, monkeypatch):
    folder = ROOT / "benchmarks" / "versions"
    monkeypatch.syspath_prepend(str(folder))
    import run

    version, fault = run.prepare_environment(faulty, run.environments()), BY_ISSUE[issue]
    code = DUMP.format(folder=str(folder), root=str(ROOT), catch=catch, probe=fault.probe)
    options = {"capture_output": True, "text": True, "env": run._environment(), "check": True}
    done = subprocess.run([version.python, "-c", code], **options)
    assert fault.in_version(version.name) and fault.hits(hlo.parse(done.stdout))
