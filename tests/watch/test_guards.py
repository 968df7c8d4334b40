import functools
import runpy
import sys

import jax
import pytest

import jaxperf
from jaxperf import cli
from jaxperf.result import Heading, Note
from jaxperf.watch.observe import executables, hooks, memory, profiler, sampler, transfers, waits
from jaxperf.watch.observe.compiles import Compiles
from jaxperf.watch.report import analysis, text, top_programs
from jaxperf.watch.rules import table as find
from jaxperf.watch.session import Watcher

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
step = jax.jit(lambda x, n: jnp.tanh(x) * n, static_argnums=1)
x = jax.device_put(np.ones((600, 600), np.float32))
for n in range(4):
    x = step(jnp.asarray([1.0] * 200).sum() * x, n)
    print("turn", n, float(x[0, 0]) * 0)
jax.device_put(np.ones(3))
jax.clear_caches()
"""
# each instrument: where it opens, while it runs, where it closes
POINTS = [
    (Watcher, "_attach"), (Watcher, "_look"), (Watcher, "_started"), (Watcher, "_describe_program"),
    (Watcher, "_remarks"),
    (Compiles, "open"), (Compiles, "listen"), (Compiles, "explain"),
    (Compiles, "_event"), (Compiles, "on_start"), (Compiles, "on_duration"), (Compiles, "_describe"),
    (Compiles, "look_at_settings"), (Compiles, "note_cleared_caches"),
    (Compiles, "close"),
    (waits.Waits, "open"), (waits.Waits, "_calls_from"), (waits.Waits, "close"),
    (transfers.Puts, "open"), (transfers.Puts, "_note"),
    (hooks.Replacements, "replace"), (hooks.Replacements, "close"),
    (sampler.Sampler, "open"), (sampler.Sampler, "_look"), (sampler.Sampler, "close"),
    (memory.MemoryReadings, "look"), (memory.MemoryReadings, "read"), (memory.MemoryReadings, "close"),
    (profiler.Profiler, "open"), (profiler.Profiler, "look"), (profiler.Profiler, "_open_window"),
    (profiler.Profiler, "_close_window"), (profiler.Profiler, "end"),
    (profiler.Profiler, "close"),
    (executables.Programs, "look"), (executables.Programs, "_note"), (executables.Programs, "close"),
    (analysis.Analysis, "shares"), (analysis.Analysis, "lines"), (analysis.Analysis, "samples"),
    (top_programs, "device_lines"), (top_programs, "hottest_programs"), (text, "environment_of_jax"),
    (text, "_compiled"),
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{getattr(point[0], '__name__', '')}.{point[1]}")
def test_the_program_and_the_report_outlive_an_error(point, tmp_path, monkeypatch, capfd):
    owner, name = point

    def broken(*args, **kwargs):
        if name in ("close", "_close_window", "end"):  # threads and windows must end
            close(*args, **kwargs)
        raise RuntimeError("a new JAX")

    close = getattr(owner, name)
    is_property = isinstance(vars(owner)[name], property | functools.cached_property)
    monkeypatch.setattr(owner, name, property(broken) if is_property else broken)
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    with jaxperf.watch("train.py", show=False) as outcome:
        runpy.run_path(str(path), run_name="__main__")
    out, err = capfd.readouterr()
    assert out == "".join(f"turn {n} 0.0\n" for n in range(4)) and err == ""
    assert outcome.result.of(Note) or outcome.result.of(Heading)
    said = " ".join([*outcome.log.losses.remarks, *outcome.log.remarks])
    # such a short program may end before a thread of the watch calls some
    late = ("device_lines", "_look", "look", "_note", "_open_window", "_close_window", "_calls_from")
    assert "a new JAX" in said or name in late


@pytest.mark.parametrize("rule", find.RULES, ids=lambda rule: rule.__name__)
def test_an_error_in_a_rule_costs_its_findings_only(rule, watched, monkeypatch):
    def broken(_):
        raise KeyError("no such program")

    broken.__name__ = rule.__name__
    monkeypatch.setattr(find, "RULES", [broken if r is rule else r for r in find.RULES])
    seen = watched(lambda: [float(jax.jit(lambda x: x + 1)(1.0)) for _ in range(9)])
    find.find_causes(seen)
    (line,) = seen.log.losses.remarks
    assert f"findings ({rule.__name__})" in line and "no such program" in line


@pytest.mark.parametrize("what", ["make_result", "deliver_report"])
def test_the_status_is_the_programs_though_the_report_fails(what, tmp_path, monkeypatch, capfd):
    def broken(*args, **kwargs):
        raise RuntimeError("a new JAX")

    (tmp_path / "train.py").write_text("import sys\nprint('done')\nsys.exit(7)\n")
    for attribute in ("argv", "path"):
        monkeypatch.setattr(sys, attribute, list(getattr(sys, attribute)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    script = sys.modules["jaxperf.watch.run_script"]
    monkeypatch.setattr(script.text if what == "make_result" else script, what, broken)
    assert cli.main(["watch", "--no-profile", str(tmp_path / "train.py")]) == 7
    out, err = capfd.readouterr()
    assert out == "done\n" and err.count("\n") == 1
    assert "the report of jaxperf watch is lost (RuntimeError: a new JAX)" in err
