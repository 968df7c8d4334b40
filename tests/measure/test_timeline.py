import itertools
import time

import jax
import jax.numpy as jnp
import pytest
from jax.profiler import ProfileData

from jaxperf.errors import JaxperfError
from jaxperf.measure import timeline
from jaxperf.result import Span, Timeline
from jaxperf.result.intervals import most_at_once


def plane(name, **lines):
    """A plane of a trace as text: each line a list of (event, start in us, length in us, statistics)."""
    ids = itertools.count(1)
    parts, names = [], {}
    for line, events in lines.items():
        rows = []
        for event, start, long, stats in events:
            statistics = []
            for key, value in stats.items():
                number = names.setdefault(("stat", key), next(ids))
                kind = f'str_value: "{value}"' if isinstance(value, str) else f"uint64_value: {value}"
                statistics.append(f"stats {{ metadata_id: {number} {kind} }}")
            number = names.setdefault(("event", event), next(ids))
            times = f"offset_ps: {start * 10**6} duration_ps: {long * 10**6}"
            rows.append(f"events {{ metadata_id: {number} {times} {' '.join(statistics)} }}")
        parts.append(f'lines {{ name: "{line}" {" ".join(rows)} }}')
    for (kind, text), number in names.items():
        parts.append(f'{kind}_metadata {{ key: {number} value {{ id: {number} name: "{text}" }} }}')
    return f'planes {{ name: "{name}" {" ".join(parts)} }}'


def read(*planes):
    spans, traced_s = timeline.read(ProfileData.from_text_proto("\n".join(planes)))
    return {(s.lane, s.name): (round(s.start_s * 1e6), round(s.end_s * 1e6)) for s in spans}, traced_s


RUN = (timeline.RUN, 100, 1000, {})


def op(name, start, long, device, **more):
    return (name, start, long, {"hlo_op": name, "device_ordinal": device, **more})


def test_instructions_belong_to_the_device_that_their_event_names():
    pool = [op("dot.1", 200, 100, 0), op("dot.2", 400, 100, 1)]
    spans, traced_s = read(plane("/host:CPU", python=[RUN, op("add", 110, 5, 1)], tf_XLAEigen=pool))
    assert spans[("cpu 0", "dot.1")] == (100, 200)
    assert spans[("cpu 1", "dot.2")] == (300, 400)
    assert spans[("cpu 1", "add")] == (10, 15)  # a small one runs in Python's own thread
    assert traced_s == pytest.approx(1e-3)


def test_an_instruction_that_hands_its_work_on_lasts_until_its_end_event():
    pool = [op("dot", 200, 1, 0, _p=7), op("other", 900, 1, 0, _p=8)]
    spans, _ = read(plane("/host:CPU", python=[RUN], a=pool, b=[("end: dot", 600, 0, {"_c": 7})]))
    assert spans[("cpu 0", "dot")] == (100, 500)
    assert spans[("cpu 0", "other")] == (800, 801)


def test_spans_are_cut_to_the_run_and_nothing_outside_remains():
    spans_us = {"before": (10, 20), "across": (50, 100), "late": (1050, 500), "after": (1200, 9)}
    pool = [op(name, start, long, 0) for name, (start, long) in spans_us.items()]
    spans, _ = read(plane("/host:CPU", python=[RUN], a=pool))
    assert spans == {("cpu 0", "across"): (0, 50), ("cpu 0", "late"): (950, 1000)}


START, STOP = "ThreadpoolListener::StartRegion", "ThreadpoolListener::StopRegion"


def test_work_of_the_pool_without_an_instruction_is_a_copy_between_devices():
    pool = [
        (START, 200, 0, {}),
        ("ThreadpoolListener::Record", 300, 0, {}),  # schedules what waited for a copy
        (STOP, 350, 0, {}),
        (START, 400, 0, {}),
        op("dot", 410, 50, 0),
        (STOP, 500, 0, {}),  # an execution
        (START, 600, 0, {}),
        ("[1] CommonPjRtLoadedExecutable::Execute (jit_f)", 610, 5, {}),  # which another thread executes
        (STOP, 700, 0, {}),
        (START, 900, 0, {}),  # broken off by the end of the trace
    ]
    asks = ("CopyToMemorySpace_Direct", 110, 1, {})
    profile = plane("/host:CPU", python=[RUN, asks], **{f"{timeline.CPU_POOL}/1": pool})
    spans, _ = timeline.read(ProfileData.from_text_proto(profile))
    copies = [(round(s.start_s * 1e6), round(s.end_s * 1e6)) for s in spans if s.lane == timeline.COPIES]
    assert copies == [(100, 200), (800, 1000)]


def test_gpu_streams_are_devices_and_transfers_are_copies():
    gpu = {
        "Stream #13(Compute)": [op("gemm", 200, 100, 0), ("MemcpyD2D", 310, 10, {})],
        "Stream #14(MemcpyD2H)": [("MemcpyD2H", 250, 100, {})],
        "XLA Modules": [("jit_dot", 200, 900, {})],  # the same again, in groups
    }
    launch = op("gemm launch", 150, 5, 0, _src="xla/backends/gpu/runtime/thunk.cc")
    spans, _ = read(plane("/host:CPU", python=[RUN], pool=[launch]), plane("/device:GPU:0", **gpu))
    on_gpu = {("gpu 0", "gemm"): (100, 200), ("gpu 0", "MemcpyD2D"): (210, 220)}
    assert spans == on_gpu | {("copies", "MemcpyD2H"): (150, 250)}


def device_lanes(recorded):
    return [lane for lane in recorded.lanes if lane not in (timeline.PYTHON, timeline.WAIT, timeline.COPIES)]


def test_an_overlap_is_a_share_of_the_less_busy_lane():
    spans = [Span(*span) for span in (("a", "", 0, 4), ("a", "", 6, 10), ("b", "", 3, 7), ("c", "", 0, 3))]
    run = Timeline("run", tuple(spans), 10.0)
    shares = {"ab": 0.5, "ba": 0.5, "ac": 1.0, "bc": 0.0, "ad": 0.0}  # there is no d
    assert {pair: timeline.overlap(run, *pair) for pair in shares} == shares


def test_a_recorded_run_shows_python_the_wait_and_both_devices():
    xs = [jax.device_put(jnp.ones((300, 300)), d) for d in jax.devices("cpu")[:2]]

    def products():
        return [[jnp.dot(x, x) for _ in range(3)] for x in xs]

    recorded = timeline.record(products, name="two devices")
    devices = device_lanes(recorded)
    assert len(devices) == 2
    assert {"python", "wait"} <= set(recorded.lanes)
    for lane in devices:
        assert len(recorded.intervals(lane)) == 3
        assert most_at_once(recorded.intervals(lane)) == 1
    assert all(0 <= s.start_s <= s.end_s <= recorded.traced_s for s in recorded.spans)
    assert 0.0 <= timeline.overlap(recorded, *devices) <= 1.0


def test_both_clocks_agree_on_how_long_the_run_took():
    x = jnp.ones((600, 600))
    began = time.perf_counter()
    recorded = timeline.record(lambda: [x @ x for _ in range(5)])
    # one interval lies within the other, however busy the machine is
    assert recorded.wall_s <= recorded.traced_s * 1.001 <= time.perf_counter() - began
    busy = [timeline.busy(recorded, lane) for lane in device_lanes(recorded)]
    assert sum(b - a for intervals in busy for a, b in intervals) <= recorded.traced_s


def test_a_copy_between_devices_is_seen():
    source, target = jax.devices("cpu")[:2]
    x = jax.device_put(jnp.ones((1500, 1500)), source)
    recorded = timeline.record(lambda: jax.device_put(x, target))
    assert timeline.busy(recorded, "copies")
    assert not device_lanes(recorded)


def test_a_mark_is_seen_in_its_lane():
    def waits():
        y = jnp.ones((400, 400)) @ jnp.ones((400, 400))
        with timeline.mark("for y"):
            return y.block_until_ready()

    recorded = timeline.record(waits)
    assert [s.name for s in recorded.spans if s.lane == "wait"] == ["for y", "outputs"]


def test_a_second_profile_at_once_is_refused_and_a_failing_function_leaves_none_running(tmp_path):
    with jax.profiler.trace(str(tmp_path)), pytest.raises(JaxperfError, match="no timeline") as e:
        timeline.record(lambda: jnp.ones(3))
    assert "\n" not in str(e.value)

    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        timeline.record(fails, warmup_calls=0)
    assert timeline.record(lambda: jnp.ones(3) + 1).lanes
