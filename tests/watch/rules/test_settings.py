import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxperf
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import find_causes
from jaxperf.watch.rules.table import advice_for
from jaxperf.watch.rules.traces import find_debug_settings


def findings_under(manager):
    jax.clear_caches()
    with jaxperf.watch(show=False, profile=False) as watched, manager():
        x = jnp.ones((50, 50))
        for _ in range(200):
            x = jax.jit(jnp.tanh)(x) + 1
    analysis = Analysis(watched.log)
    return list(find_debug_settings(analysis)), find_causes(analysis)


def test_a_setting_is_named_at_the_line_that_turns_it_on_and_what_it_causes_is_no_fault():
    (finding,), _ = findings_under(lambda: jax.debug_nans(True))  # here
    assert finding.name == "jax_debug_nans" and "jax_debug_nans is on" in finding.reason
    assert finding.at.source.endswith("# here") and finding.seconds > 0
    assert "only while you look" in advice_for(finding).change
    (finding,), every = findings_under(lambda: jax.disable_jit())
    assert finding.name == "jax_disable_jit"
    assert not {f.cause for f in every} & {"eager", "eager recompiles", "eager shapes"}


def test_a_setting_of_the_environment_has_no_line_and_is_named(tmp_path, watched):
    (tmp_path / "step.py").write_text("import jax\nprint(jax.jit(lambda x: x + 1)(2.0))\n")
    with jax.debug_infs(True):
        analysis = watched(lambda: runpy.run_path(str(tmp_path / "step.py")))
    (finding,) = find_debug_settings(analysis)
    if finding.argument:  # this file turns it on, and may be among the callers
        assert Path(finding.at.file) == Path(__file__)
    else:
        assert "JAX_DEBUG_INFS" in advice_for(finding).change


def test_a_program_under_a_setting_still_fails_as_it_would():
    double = jax.jit(lambda x: x * 2)
    with jaxperf.watch(show=False, profile=False), jax.debug_nans(True):
        assert double(jnp.float32(1.0)) == 2.0
        with pytest.raises(FloatingPointError):
            double(jnp.float32(np.nan))


def test_what_gave_a_nan_and_ran_again_one_operation_at_a_time_counts_as_the_settings(watched):
    @jax.jit
    def normalize(x):
        return (x - x.mean()) / jnp.sqrt((x**2).sum())

    def run():
        with jax.debug_nans(True), pytest.raises(FloatingPointError):
            normalize(jnp.zeros((7, 9)))

    analysis = watched(run)
    (finding,) = find_debug_settings(analysis)
    again = [c for c in analysis.log.compiled if not c.explained and c.at.function == "normalize"]
    assert again and finding.seconds >= 0.9 * analysis.compiling_s(again)
    assert "ran again, one operation at a time" in finding.reason
