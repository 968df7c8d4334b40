"""`jaxperf.onednn.enable()`: what it changes in a process of its own, and what it says where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest

import jaxperf
from jaxperf import onednn
from jaxperf.onednn import trial

X86 = pytest.mark.skipif(trial._jaxlib() is None, reason="jaxlib carries oneDNN for x86 alone")
SWITCHED = trial.has_switch()
LAYER = """
import jax, jax.numpy as jnp
from jax import lax

def loss(x, w):
    y = lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.sin(y).sum()

gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
program = gradient.lower(jnp.ones((8, 14, 14, 16)), jnp.ones((5, 5, 16, 32))).compile().as_text()
print(program.count('"__onednn$convolution"') >= 2)
"""


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that has none of this process's settings of oneDNN and JAX's cache."""
    names = (trial.BY_NAME, trial.CACHE, "XLA_FLAGS")
    environment = {k: v for k, v in os.environ.items() if k not in names} | variables
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's environment as a user has it; nothing is tried and no rule is registered."""
    for name in (trial.BY_NAME, "XLA_FLAGS"):
        monkeypatch.setenv(name, "")  # so that it is restored, whatever enable() sets
    monkeypatch.setattr(onednn, "_compile_cache", lambda: "")
    monkeypatch.setattr(onednn, "_check_not_started", lambda: None)
    monkeypatch.setattr(trial, "_jaxlib", lambda: (0, 12))
    monkeypatch.setattr(trial, "_failure", lambda variables: "")
    monkeypatch.setattr(trial, "begin", lambda: None)


@X86
def test_two_lines_send_a_convolution_and_its_gradients_through_onednn() -> None:
    """The second call changes nothing, and a process that this one starts uses oneDNN, too."""
    lines = "import os, jaxperf\nprint(jaxperf.onednn.enable())\n"
    more = "print(jaxperf.onednn.enable(), os.environ.get('XLA_FLAGS', '').count('custom_call'))"
    done = run(lines + LAYER + more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True", "True", f"True {int(SWITCHED)}"]
    assert "oneDNN" not in done.stderr


@X86
@pytest.mark.thorough
def test_after_jaxs_first_operation_it_is_an_error_where_xla_reads_a_switch() -> None:
    done = run("import jax, jaxperf\njax.numpy.ones(2).sum()\nprint(jaxperf.onednn.enable())" + LAYER)
    if SWITCHED:
        assert done.returncode == 1 and done.stdout == ""
        last = done.stderr.splitlines()[-1]
        assert last.startswith("jaxperf.errors.JaxperfError: JAX has started")
        assert last.endswith("call enable() before JAX's first operation")
    else:
        assert done.stdout.splitlines() == ["True", "True"], done.stderr


@X86
def test_flags_that_xla_rejects_are_a_reason_and_do_not_end_the_process() -> None:
    done = run("import jaxperf\nprint(jaxperf.onednn.enable())", XLA_FLAGS="--xla_no_such_flag=1")
    assert (done.returncode, done.stdout) == (0, "False\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("jaxperf: oneDNN stays off: the trial in a separate process failed: ")
    assert "xla_no_such_flag" in line


def test_each_refusal_says_why_in_one_line_and_changes_nothing(
    untouched: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warning() -> str:
        before = dict(os.environ)
        assert onednn.enable() is False
        assert dict(os.environ) == before
        (line,) = capsys.readouterr().err.splitlines()
        return line.removeprefix("jaxperf: oneDNN stays off: ")

    def with_patch(owner: Any, name: str, value: Any) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            return warning()

    machine = trial.platform.machine()
    assert with_patch(trial, "_jaxlib", lambda: None) == (
        f"it needs a jaxlib for x86 processors, and this one is {machine}"
    )
    assert with_patch(onednn, "_compile_cache", lambda: "somewhere") == (
        "JAX_COMPILATION_CACHE_DIR is set, and jaxlib cannot store programs that call oneDNN"
    )
    assert with_patch(trial, "_failure", lambda variables: "the trial failed") == "the trial failed"
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_onednn=false")
    assert warning() == "XLA_FLAGS already sets flags for oneDNN or YNNPACK, and these stay"


def test_what_it_sets_is_what_processes_started_later_inherit(untouched: None) -> None:
    assert onednn.enable() is True
    assert os.environ[trial.BY_NAME] == "1" and os.environ["XLA_FLAGS"] == " ".join(trial.SWITCH)
    assert trial.requested()


def test_a_cache_counts_however_it_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SimpleNamespace(jax_compilation_cache_dir="of JAX")
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(config=config))
    monkeypatch.delenv(trial.CACHE, raising=False)
    assert onednn._compile_cache() == "of JAX"
    config.jax_compilation_cache_dir = None
    assert onednn._compile_cache() == ""
    monkeypatch.delitem(sys.modules, "jax")
    assert onednn._compile_cache() == ""
    monkeypatch.setenv(trial.CACHE, "of the environment")
    assert onednn._compile_cache() == "of the environment"


def test_a_trial_that_hangs_or_cannot_start_or_dies_silently_has_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial._failure.cache_clear()
    monkeypatch.setattr(trial, "LIMIT_S", 0.01)
    assert trial._failure((("A", "hangs"),)) == "the trial in a separate process takes more than 0.01 s"
    monkeypatch.setattr(trial, "LIMIT_S", 100)
    monkeypatch.setattr(trial, "CHILD", "import os; os._exit(3)")
    assert trial._failure((("A", "dies"),)) == "the trial in a separate process failed: status 3"
    monkeypatch.setattr(trial.sys, "executable", "/no/such/python")
    begins = "the trial in a separate process does not start: "
    assert trial._failure((("A", "cannot start"),)).startswith(begins)
    trial._failure.cache_clear()


def test_the_package_has_it_without_importing_jax() -> None:
    done = run("import sys, jaxperf\njaxperf.onednn.enable\nprint('jax' in sys.modules)")
    assert done.stdout == "False\n", done.stderr
    assert jaxperf.onednn is onednn
