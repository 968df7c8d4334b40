import re

import children
import pytest

WITH_JAX = """
import sys, warnings
import jax, jax.numpy as jnp, numpy as np

class Warns:
    def __array__(self, dtype=None, copy=None):
        warnings.warn("who asks?", UserWarning, stacklevel=2)
        return np.ones(2)

class Short(tuple):
    def __len__(self):
        print("counted")
        return tuple.__len__(self)

def depth(n):
    try:
        return depth(n + 1)
    except RecursionError:
        return n

print(float(jax.jit(lambda x: x * 2)(1.5)), depth(0), sys.getrecursionlimit())
sys.setrecursionlimit(900)
print(depth(0), sys.getrecursionlimit())
jnp.asarray(np.ones(3), dtype=np.float64)    # two lines with the same warning
jnp.array([1.0], dtype="float64")
jnp.asarray(Warns())
words = Short((1, 2))
x = jnp.ones(3)
for _ in range(300):
    x = jnp.sin(x)
try:
    jnp.asarray("abc")
except Exception as e:
    raise ValueError(len(words)) from e
"""
WITHOUT_JAX = """
import os, sys
x = "\\d"    # which Python warns of
child = os.fork() if hasattr(os, "fork") else None
if child == 0:
    os._exit(3)
print(child and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(sys.path, sys.argv, __file__, __spec__)
def down(n):
    return down(n + 1)
down(0)
"""


@pytest.mark.parametrize("text", [WITH_JAX, WITHOUT_JAX], ids=["with JAX", "without JAX"])
def test_a_program_says_the_same_as_alone(text, tmp_path):
    (tmp_path / "real.py").write_text(text)
    (tmp_path / "train.py").symlink_to("real.py")
    said = []
    for command in ([], ["-m", "jaxperf", "watch"]):
        warnings = ("-W", "always::DeprecationWarning:__main__")
        done = children.run(*warnings, *command, "train.py", "--lr", folder=tmp_path)
        said.append((done.returncode, done.stdout, done.stderr.partition("\nwatch: train.py")[0]))
    alone, watched = said
    assert alone[0] == 1 and alone[2]
    assert watched == alone


SAYS_WHERE = """
import sys, helper
print(sys.argv, sys.path[0], __name__, __file__, helper.__file__)
"""


@pytest.mark.parametrize("text", ["def :\n", "x = (1,\ny = 2\n", "a = 1\n  b = 2\n"])
def test_a_script_that_is_not_python_ends_as_alone(text, tmp_path):
    (tmp_path / "train.py").write_text(text)
    ends = []
    for command in ([], ["-m", "jaxperf", "watch"]):
        done = children.run(*command, "train.py", folder=tmp_path)
        ends.append((done.returncode, done.stdout, done.stderr))
    assert ends[0][0] == 1 and "Error: " in ends[0][2]
    assert ends[1] == ends[0]


def test_a_folder_with_a_main_runs_as_alone(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(SAYS_WHERE)
    (tmp_path / "app" / "helper.py").touch()
    outputs = []
    for command in ([], ["-m", "jaxperf", "watch"]):
        done = children.run(*command, "app", "--lr", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] != ""


EXPLAINED = """
import jax
step = jax.jit(lambda x: x + 1)
step(1.0)
jax.config.update("jax_explain_cache_misses", True)
step(1)
step(1j)
jax.config.update("jax_explain_cache_misses", False)
step(True)
"""


def test_a_program_that_asks_why_jax_traces_again_is_told_so(tmp_path):
    (tmp_path / "train.py").write_text(EXPLAINED)
    told = []
    for command in ([], ["-m", "jaxperf", "watch"]):
        done = children.run(*command, "train.py", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        told.append(re.findall("CACHE MISS at .*", done.stderr))
    alone, watched = told
    assert len(alone) == 2 and watched == alone
