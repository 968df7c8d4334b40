import pytest

from jaxperf import hlo
from jaxperf.plan.cards import CARDS
from jaxperf.plan.collectives import collectives
from jaxperf.plan.kernels import kernels_of
from jaxperf.plan.planning import _of_program

VERSIONS = ("jax_0_10", "jax_0_12")
# kind, bytes, groups, devices of a group, times
COLLECTIVES = {
    "data_parallel": [("all-reduce", 2 * 512 * 512 * 4, 1, 8, 1)],
    "fsdp": [(kind, 2 * 1024 * 1024 * 4, 1, 8, 1) for kind in ("all-gather", "reduce-scatter")],
    "tensor": [
        ("all-reduce", 1024 * 512 * 4, 2, 4, 1),  # activations, over the axis "model"
        ("all-reduce", 2 * 512 * 128 * 4, 4, 2, 1),  # gradients, over the axis "data"
    ],
    "loop": [("all-reduce", 2 * 512 * 512 * 4, 1, 8, 5)],
    "reshard": [("all-to-all", 1024 * 128 * 4, 1, 8, 1)],
    "scatter": [],
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives(name, version, recorded):
    in_order = collectives(recorded(f"{name}_{version}"), {"data": 8}).values()
    seen = [(c.kind, c.bytes, len(c.groups), c.group_size, c.times) for c in in_order]
    assert seen == COLLECTIVES[name]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_loop_runs_its_body_as_often_as_it_says(version, recorded):
    once, loop = (recorded(f"{name}_{version}") for name in ("data_parallel", "loop"))

    def flops(module):
        works = kernels_of(module)
        return sum(times * works[i.name].flops for i, times in module.executed() if i.name in works)

    assert flops(loop) == 5 * flops(once)


@pytest.mark.parametrize(("attribute", "groups"), [
    ("replica_groups={{0,1},{2,3}}", ((0, 1), (2, 3))), ("replica_groups={}", ((0, 1, 2, 3),)),
    ("to_apply=%add", ((0, 1, 2, 3),)), ("replica_groups=[2,2]<=[4]", ((0, 1), (2, 3))),
    ("replica_groups=[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
    ("replica_groups=mesh['data'=2,'model'=2] {'data'}, x={'y'}", ((0, 2), (1, 3))),
    ("replica_groups=mesh['data'=2,'model'=2] {'model'}", ((0, 1), (2, 3))),
    ("replica_groups=mesh['data'=2,'model'=2] {'data','model'}", ((0, 1, 2, 3),)),
    ("source_target_pairs={{0,1},{1,0}}", ((0, 1), (1, 0))),
])  # fmt: skip
def test_groups(attribute, groups):
    assert hlo.groups_of(f'channel_id=1, {attribute}, metadata={{op_name="x"}}', 4) == groups


REDUCE = """HloModule jit_f

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %r = f32[8]{0} all-reduce(%x), replica_groups={}, to_apply=%add, metadata={op_name="NAME"}
}
"""


@pytest.mark.parametrize(
    ("operation", "asked"),
    [
        ("jit(step)/transpose(jvp())/dot_general", False),
        ("jit(step)/shard_map/psum", True),
        ("jit(step)/dot_general:jit(step)/shard_map/psum", True),
        ("jit(step)/transpose(jvp(shard_map))/psum", True),  # the gradient is taken outside
        ("jit(step)/shard_map/dot_general", True),  # a part of what XLA made of a ragged_all_to_all
        ("jit(my_shard_map_step)/dot_general", False),
    ],
)
def test_a_collective_that_the_program_asks_for(operation, asked):
    (each,) = collectives(hlo.parse(REDUCE.replace("NAME", operation)), {"data": 8}).values()
    assert each.asked is asked


CONVOLUTION = """HloModule jit_f, is_scheduled=true

ENTRY %main (x: f32[8,10,10,4], w: f32[16,3,3,4]) -> f32[8,8,8,16] {
  %x = f32[8,10,10,4]{3,2,1,0} parameter(0)
  %w = f32[16,3,3,4]{3,2,1,0} parameter(1)
  %y = (f32[8,8,8,16]{3,2,1,0}, u8[0]{0}) custom-call(%x, %w), window={size=3x3}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convForward"
  %d = (f32[16,3,3,4]{3,2,1,0}, u8[0]{0}) custom-call(%x, %g), window={size=3x3}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardFilter"
  %g = f32[8,8,8,16]{3,2,1,0} get-tuple-element(%y), index=0
  %b = (f32[8,10,10,4]{3,2,1,0}, u8[0]{0}) custom-call(%g, %w), window={size=3x3}, dim_labels=b01f_o01i->b01f, custom_call_target="__cudnn$convBackwardInput"
  ROOT %r = f32[8,8,8,16]{3,2,1,0} copy(%g)
}
"""  # noqa: E501


def test_convolutions():
    module = hlo.parse(CONVOLUTION)
    works = kernels_of(module)
    flops = 2 * 8 * 8 * 8 * 16 * 9 * 4
    assert works["y"].products == (hlo.Product(1, 8 * 8 * 8, 16, 36, "float32"),)
    assert [works[name].flops for name in ("y", "d")] == [flops, flops]
    assert works["b"].products[0].columns == 4
    assert "x" not in works


def test_a_slice_reads_what_it_gives():
    text = """HloModule jit_f

%inner (p: f32[1000,4], i: s32[]) -> f32[1,4] {
  %p = f32[1000,4]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %s = f32[1,4]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,4}
}

ENTRY %main (x: f32[1000,4], j: s32[]) -> f32[1,4] {
  %x = f32[1000,4]{1,0} parameter(0)
  %j = s32[] parameter(1)
  ROOT %f = f32[1,4]{1,0} fusion(%x, %j), kind=kLoop, calls=%inner
}
"""
    (work,) = kernels_of(hlo.parse(text)).values()
    assert work.bytes == 16 + 4 + 16


SCATTER = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%fused (table: f32[1000,64], rows: s32[8,1], new: f32[8,1,64]) -> f32[1000,64] {
  %table = f32[1000,64]{1,0} parameter(0)
  %rows = s32[8,1]{1,0} parameter(1)
  %new = f32[8,1,64]{2,1,0} parameter(2)
  ROOT %scattered = f32[1000,64]{1,0} scatter(%table, %rows, %new), update_window_dims={1,2}, to_apply=%add
}

ENTRY %main (x: f32[1000,64], i: s32[8,1], v: f32[8,1,64]) -> f32[1000,64] {
  %x = f32[1000,64]{1,0} parameter(0)
  %i = s32[8,1]{1,0} parameter(1)
  %v = f32[8,1,64]{2,1,0} parameter(2)
  ROOT %changed = f32[1000,64]{1,0} fusion(%x, %i, %v), kind=kInput, calls=%fused
}
"""


def test_a_scatter_in_a_fusion_moves_the_rows_that_it_changes_and_not_the_table():
    (work,) = kernels_of(hlo.parse(SCATTER)).values()
    row_bytes, index_bytes = 8 * 64 * 4, 8 * 4
    assert work.bytes == 3 * row_bytes + index_bytes  # the updates are read; the rows are read and written


@pytest.mark.parametrize(("version", "lines"), [("0.11.0", 1), ("0.12.0", 0)])
def test_a_known_fault_of_jaxlib_is_named(version, lines):
    module = hlo.parse(SCATTER)
    notes = _of_program(CARDS["h100"], module, {}, version)
    assert len(notes) == lines
    assert all("x.at[i].add(y) in float32" in note and "not in the times" in note for note in notes)
    assert not _of_program(CARDS["v5e"], module, {}, version)
