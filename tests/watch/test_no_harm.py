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


def ends(folder, *program, before=()):
    """Return status, output and errors of a program alone, and those under a watch but for its report."""
    commands = (before, (*before, "-m", "jaxperf", "watch"))
    for done in [children.run(*command, *program, folder=folder) for command in commands]:
        yield done.returncode, done.stdout, done.stderr.partition(f"\nwatch: {program[0]}")[0]


NO_PYTHON = ("def :\n", "x = (1,\ny = 2\n", "a = 1\n  b = 2\n")


@pytest.mark.parametrize("text", [WITH_JAX, WITHOUT_JAX, *NO_PYTHON])
def test_a_program_says_the_same_as_alone(text, tmp_path):
    (tmp_path / "real.py").write_text(text)
    (tmp_path / "train.py").symlink_to("real.py")
    warnings = ("-W", "always::DeprecationWarning:__main__")
    alone, watched = ends(tmp_path, "train.py", "--lr", before=warnings)
    assert alone[0] == 1 and "Error: " in alone[2]
    assert watched == alone


SAYS_WHERE = """
import sys, helper
print(sys.argv, sys.path[0], __name__, __file__, helper.__file__)
"""


def test_a_folder_with_a_main_runs_as_alone(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(SAYS_WHERE)
    (tmp_path / "app" / "helper.py").touch()
    alone, watched = ends(tmp_path, "app", "--lr")
    assert alone[:2] == watched[:2] and alone[0] == 0 and alone[1]


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
    (alone_status, _, alone), (status, _, watched) = ends(tmp_path, "train.py")
    assert alone_status == status == 0, watched
    alone, watched = (re.findall("CACHE MISS at .*", text) for text in (alone, watched))
    assert len(alone) == 2 and watched == alone
