"""Known faults: each pattern finds its instruction in a program of the faulty version, and only there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jaxperf import hlo
from jaxperf.known_faults import FAULTS, Fault, faults_of, release

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(__file__).parent / "plan" / "programs"
BY_ISSUE = {fault.issue.split(",")[0]: fault for fault in FAULTS}


def fault(issue: str) -> Fault:
    return BY_ISSUE[issue]


# Shortened from what each version compiled
PATH_0_11_1 = """HloModule jit_path, is_scheduled=true

%fused (p0: f32[20000], p1: f32[1], p2: s32[]) -> f32[20000] {
  %p0 = f32[20000]{0} parameter(0)
  %p1 = f32[1]{0} parameter(1)
  %p2 = s32[] parameter(2)
  ROOT %write = f32[20000]{0} dynamic-update-slice(%p0, %p1, %p2), \
metadata={source_file="a.py" source_line=12}
}

%body (arg: (s32[], f32[20000])) -> (s32[], f32[20000]) {
  %arg = (s32[], f32[20000]{0}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %x = f32[20000]{0} get-tuple-element(%arg), index=1
  %value = f32[1]{0} constant({2})
  %fusion.1 = f32[20000]{0} fusion(%x, %value, %i), kind=kLoop, calls=%fused
  ROOT %out = (s32[], f32[20000]{0}) tuple(%i, %fusion.1)
}

%cond (arg.1: (s32[], f32[20000])) -> pred[] {
  %arg.1 = (s32[], f32[20000]{0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (start: f32[20000]) -> f32[20000] {
  %start = f32[20000]{0} parameter(0)
  %zero = s32[] constant(0)
  %carry = (s32[], f32[20000]{0}) tuple(%zero, %start)
  %loop = (s32[], f32[20000]{0}) while(%carry), condition=%cond, body=%body
  ROOT %result = f32[20000]{0} get-tuple-element(%loop), index=1
}
"""
READS_0_7_1 = PATH_0_11_1.replace(
    "  %value = f32[1]{0} constant({2})",
    "  %value = f32[1]{0} call(%x), to_apply=%inner",
)
ROWS_0_10_2 = """HloModule jit_rows, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%fused (p0: f32[32769,3]) -> f32[32769] {
  %same = f32[3,3]{1,0} constant({...})
  %p0 = f32[32769,3]{1,0} parameter(0)
  %product = f32[3,32769]{1,0} dot(%same, %p0), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  %square = f32[3,32769]{1,0} multiply(%product, %product)
  %zero = f32[] constant(0)
  ROOT %total = f32[32769]{0} reduce(%square, %zero), dimensions={0}, to_apply=%sum
}

ENTRY %main (row: f32[32769,3]) -> f32[32769] {
  %row = f32[32769,3]{1,0} parameter(0)
  ROOT %ynn_fusion = f32[32769]{0} fusion(%row), kind=kCustom, calls=%fused, \
backend_config={"fusion_config":{"kind":"__ynn_fusion"},"outer_dimension_partitions":[]}
}
"""
RANK_7_0_10_2 = """HloModule jit_f, is_scheduled=true

%fused (p0: f32[3,1,2,2,8,8,8], p1: f32[3,1,2,2,8,8,8]) -> f32[3,1,2,8,8,8] {
  %p0 = f32[3,1,2,2,8,8,8]{6,5,4,3,2,1,0} parameter(0)
  %p1 = f32[3,1,2,2,8,8,8]{6,5,4,3,2,1,0} parameter(1)
  %mul = f32[3,1,2,2,8,8,8]{6,5,4,3,2,1,0} multiply(%p0, %p1)
  %zero = f32[] constant(0)
  ROOT %total = f32[3,1,2,8,8,8]{5,4,3,2,1,0} reduce(%mul, %zero), dimensions={3}, to_apply=%sum
}

ENTRY %main (a: f32[3,1,2,2,8,8,8], b: f32[3,1,2,2,8,8,8]) -> f32[3,1,2,8,8,8] {
  %a = f32[3,1,2,2,8,8,8]{6,5,4,3,2,1,0} parameter(0)
  %b = f32[3,1,2,2,8,8,8]{6,5,4,3,2,1,0} parameter(1)
  ROOT %ynn_fusion = f32[3,1,2,8,8,8]{5,4,3,2,1,0} fusion(%a, %b), kind=kCustom, calls=%fused, \
backend_config={"fusion_config":{"kind":"__ynn_fusion"}}
}
"""
SLICES_0_11_0 = """HloModule jit_f, is_scheduled=true

%sum_fused (p0: f32[], p1: f32[127,128,128], p2: f32[127,128,128]) -> f32[] {
  %p1 = f32[127,128,128]{2,1,0} parameter(1)
  %p2 = f32[127,128,128]{2,1,0} parameter(2)
  %sub = f32[127,128,128]{2,1,0} subtract(%p1, %p2)
  %p0 = f32[] parameter(0)
  ROOT %total = f32[] reduce(%sub, %p0), dimensions={0,1,2}, to_apply=%sum
}

%wrapped_slice (p3: f32[128,128,128]) -> f32[127,128,128] {
  %p3 = f32[128,128,128]{2,1,0} parameter(0)
  ROOT %slice = f32[127,128,128]{2,1,0} slice(%p3), slice={[1:128], [0:128], [0:128]}
}

ENTRY %main (x: f32[128,128,128]) -> f32[] {
  %x = f32[128,128,128]{2,1,0} parameter(0)
  %zero = f32[] constant(0)
  %part = f32[127,128,128]{2,1,0} fusion(%x), kind=kLoop, calls=%wrapped_slice
  ROOT %ynn_fusion = f32[] fusion(%zero, %part, %part), kind=kCustom, calls=%sum_fused, \
backend_config={"fusion_config":{"kind":"__ynn_fusion"}}
}
"""
SHIFT_0_12 = """HloModule jit_f, is_scheduled=true

%fused (p0: s32[4,1,1]) -> s32[1,4,1] {
  %p0 = s32[4,1,1]{2,1,0} parameter(0)
  %seen = s32[1,4,1]{2,1,0} bitcast(%p0)
  %part = s32[3,1,1]{2,1,0} slice(%p0), slice={[0:3], [0:1], [0:1]}
  %part.1 = s32[1,3,1]{2,1,0} bitcast(%part)
  %zero = s32[] constant(0)
  ROOT %write = s32[1,4,1]{2,1,0} dynamic-update-slice(%seen, %part.1, %zero, %zero, %zero)
}

ENTRY %main (x: s32[4,1,1]) -> s32[1,4,1] {
  %x = s32[4,1,1]{2,1,0} parameter(0)
  ROOT %fusion = s32[1,4,1]{2,1,0} fusion(%x), kind=kLoop, calls=%fused
}
"""
EXP_0_6_2 = """HloModule jit_f, is_scheduled=true

ENTRY %main (x: f64[]) -> f64[] {
  %x = f64[] parameter(0)
  ROOT %exponential = f64[] exponential(%x)
}
"""
SCATTER = (PROGRAMS / "scatter_jax_0_12.hlo").read_text()

# issue, the program, the instruction; and the change after which the fault no longer hits it
RECORDED = [
    ("jax-ml/jax#40101", PATH_0_11_1, "write", ("f32[1]{0}", "f32[64]{0}")),
    ("jax-ml/jax#40101", PATH_0_11_1, "write", ("20000", "2000")),
    ("jax-ml/jax#31284", READS_0_7_1, "write", ("call(%x), to_apply=%inner", "slice(%x), slice={[0:1]}")),
    ("jax-ml/jax#39103", ROWS_0_10_2, "product", ("32769", "16384")),
    ("jax-ml/jax#39103", ROWS_0_10_2, "product", ("__ynn_fusion", "__onednn")),
    ("jax-ml/jax#39257", RANK_7_0_10_2, "total", ("2,2,8,8,8]", "2,2,8,8]")),
    (
        "jax-ml/jax#37465",
        SLICES_0_11_0,
        "total",
        ("calls=%wrapped_slice", "calls=%no"),
    ),
    ("openxla/xla#49176", SHIFT_0_12, "write", ("dynamic-update-slice(%seen", "dynamic-update-slice(%p0")),
    ("jax-ml/jax#29537", EXP_0_6_2, "exponential", ("f64", "f32")),
    ("jax-ml/jax#26145", EXP_0_6_2, "exponential", ("exponential(", "tanh(")),
    ("jax-ml/jax#38806", SCATTER, "", ("f32[", "f64[")),
    ("openxla/xla#26371", SCATTER.replace("f32[", "bf16["), "", ("bf16[", "f32[")),
]


@pytest.mark.parametrize(("issue", "text", "name", "change"), RECORDED, ids=lambda value: str(value)[:20])
def test_a_pattern_finds_its_instruction_and_nothing_after_the_change(
    issue: str, text: str, name: str, change: tuple[str, str]
) -> None:
    assert change[0] in text
    hits = fault(issue).hits(hlo.parse(text))
    assert hits and (not name or {i.name for i in hits} == {name})
    assert fault(issue).hits(hlo.parse(text.replace(*change))) == []


def test_every_pattern_has_a_recorded_program() -> None:
    assert {f.issue.split(",")[0] for f in FAULTS if f.pattern} == {issue for issue, *_ in RECORDED}


def test_the_line_of_a_hit_is_that_of_the_program() -> None:
    module = hlo.parse(PATH_0_11_1)
    (hit,) = fault("jax-ml/jax#40101").hits(module)
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
def test_versions(issue: str, version: str, has: bool) -> None:
    assert fault(issue).in_version(version) == has


def test_a_fault_of_one_platform_and_card_is_not_one_of_others() -> None:
    issues = {f.issue for f in faults_of("0.10.2", "cpu")}
    assert "openxla/xla#26371" not in issues and "jax-ml/jax#39103" in issues
    a100 = {f.issue for f in faults_of("0.10.2", "gpu", "NVIDIA A100-SXM4-80GB")}
    h100 = {f.issue for f in faults_of("0.10.2", "cuda", "NVIDIA H100 80GB HBM3")}
    assert "openxla/xla#26371" in a100 - h100
    assert not a100 & {"jax-ml/jax#39103"}


def test_the_table_is_complete_and_in_plain_words() -> None:
    probes = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "versions" / "run.py"), "--list"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    names = {line.partition(":")[0] for line in probes.splitlines()}
    for f in FAULTS:
        assert f.name and f.issue.count("#") and f.symptom and f.way_out and f.platforms, f
        assert not f.fixed or release(f.first) < release(f.fixed), f
        assert not f.probe or f.probe in names, f
        assert f.probe or "cpu" not in f.platforms, f


# --- with the versions themselves

DUMP = """
import sys
sys.path[:0] = [{folder!r}, {root!r}]
import jax
import reported
made = {{}}
jit = jax.jit
if {catch}:
    def jitted(fn, **options):
        def call(*args):
            print(jit(fn, **options).lower(*args).compile().as_text())
            raise SystemExit
        return call
    jax.jit = jitted
    with __import__("jaxperf.jax_internals").jax_internals.enable_x64({x64}):
        reported.{probe}()
fn, *arguments = reported.{probe}()
print(fn.lower(*arguments).compile().as_text())
"""


@pytest.mark.real
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("issue", "faulty", "catch", "x64"),
    [
        ("jax-ml/jax#40101", "0.11.1", False, False),
        ("jax-ml/jax#31284", "0.7.1", False, False),
        ("jax-ml/jax#37465", "0.11.0", False, False),
        ("jax-ml/jax#39103", "0.10.2", True, False),
        ("jax-ml/jax#29537", "0.6.2", True, True),
    ],
)
def test_the_version_compiles_what_the_pattern_expects(
    issue: str, faulty: str, catch: bool, x64: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ROOT / "benchmarks" / "versions"
    monkeypatch.syspath_prepend(str(folder))
    import run

    version = run.prepare_environment(faulty, run.environments())
    code = DUMP.format(folder=str(folder), root=str(ROOT), catch=catch, x64=x64, probe=fault(issue).probe)
    done = subprocess.run(
        [version.python, "-c", code], capture_output=True, text=True, env=run._environment(), check=True
    )
    assert fault(issue).in_version(version.name)
    assert fault(issue).hits(hlo.parse(done.stdout))
