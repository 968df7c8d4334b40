"""Call a function in a fresh process: for settings that JAX reads at startup, and for clean memory."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.processes.parent import named_parent

_CHILD = """
import importlib.util, json, sys
from jaxperf.processes.parent import follow_parent
follow_parent()
path, stem, name, arguments = sys.argv[1:]
spec = importlib.util.spec_from_file_location(stem, path)
module = sys.modules[stem] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
answer = getattr(module, name)(*json.loads(arguments))
sys.stdout.write("\\n" + json.dumps(answer, allow_nan=False) + "\\n")
"""
_TAIL = 4000  # characters of a failed child's last words


def in_fresh_process(
    fn: Callable[..., Any], *args: Any, environment: Mapping[str, str] | None = None, timeout_s: float = 600
) -> Any:
    """Return `fn(*args)`, computed in a new process that imports the file of `fn` and calls it there.

    As with `multiprocessing`'s "spawn", the file's `__main__` part does not run there. Unlike with "spawn",
    arguments and result are passed as JSON (tuples arrive as lists), and the environment can be chosen, so
    that JAX starts with other settings. What the process prints is not shown. It has one CPU device unless
    told otherwise, and allocates GPU memory on demand, since this process may hold most of it. It does not
    outlive this process.

    Args:
      fn: a function at the top level of a Python file.
      *args: its arguments, of JSON's types.
      environment: variables to set, in addition to those of this process.
      timeout_s: seconds after which the process is killed.

    Raises:
      JaxperfError: `fn` is not defined in a file, or is inside another function or class.
      RuntimeError: the call failed (the message ends as its traceback does) or took too long.
    """
    path = _file_of(fn)
    child_arguments = [str(path), path.stem, fn.__name__, json.dumps(args)]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "JAX_NUM_CPU_DEVICES": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        **named_parent(),
        **(environment or {}),
    }
    command = [sys.executable, "-c", _CHILD, *child_arguments]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{fn.__name__} in a fresh process took more than {timeout_s:g} s") from None
    if done.returncode:
        raise RuntimeError(f"{fn.__name__} failed in a fresh process:\n{done.stderr[-_TAIL:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _file_of(fn: Callable[..., Any]) -> Path:
    """The file that defines `fn` at its top level."""
    name = fn.__qualname__
    path = Path(inspect.getsourcefile(fn) or "") if inspect.isfunction(fn) else None
    if (
        path and not path.is_file() and fn.__module__ == "__main__"
    ):  # a notebook's cell; its script has it too
        path = Path(sys.modules["__main__"].__dict__.get("__file__") or "")
    if path is None or not path.is_file() or not name.isidentifier():  # "outer.<locals>.inner", "<lambda>"
        raise JaxperfError(f"{name} can't be called in another process; define it at the top level of a file")
    return path.resolve()
