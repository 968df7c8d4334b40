"""The Python of each framework: one that is there already, or an environment that uv makes.

What an environment holds stands in the head of `with_NAME.py` (PEP 723), so `uv run --script with_NAME.py`
works, too. The runner makes it in `build/frameworks/NAME`, because `uv run` cannot be told to take PyTorch's
build without CUDA where there is no GPU.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError

FOLDER = Path(__file__).resolve().parent
BUILD = FOLDER.parents[1] / "build" / "frameworks"
FRAMEWORKS = ("jax", "mxnet", "torch")
OF_OUR_PYTHON = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV")
# uv does not read pip's settings; where only pip's are made, they count for uv.
PIP_SETTINGS = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
}


class UnavailableError(Exception):
    """This framework cannot be had here; one line says why."""


def script(name: str) -> Path:
    return FOLDER / f"with_{name}.py"


def head(name: str) -> dict[str, Any]:
    """Return what a framework's program says about its environment (PEP 723)."""
    block = re.search(r"^# /// script\n(.*?)^# ///$", script(name).read_text("utf-8"), re.M | re.S)
    assert block is not None
    return tomllib.loads(re.sub(r"^# ?", "", block[1], flags=re.M))


def named(pairs: Iterable[str]) -> dict[str, Path]:
    """Return the interpreters that "torch=/usr/bin/python3" and its like name, after trying each.

    Raises:
      JaxperfError: a pair has another form, or its Python does not have the framework; one line says which.
    """
    pythons: dict[str, Path] = {}
    for pair in pairs:
        name, _, path = pair.partition("=")
        if name not in FRAMEWORKS or not path:
            raise JaxperfError(
                f"--python is {pair!r}; give NAME=PATH for one of {', '.join(FRAMEWORKS)}, "
                "as in torch=/usr/bin/python3"
            )
        pythons[name] = Path(path).absolute()
        trouble = _tried([str(pythons[name]), str(script(name))])
        if trouble:
            raise JaxperfError(f"--python {pair}: {trouble}; name a Python that has {name}")
    return pythons


def python(name: str, pythons: Mapping[str, Path], say: Callable[[str], None]) -> Path:
    """Return the Python that runs a framework; its environment is made unless it is there.

    Args:
      name: of the framework. JAX runs in the Python that runs this.
      pythons: those that are named.
      say: is told when an environment is made.

    Raises:
      UnavailableError: it cannot be made; no environment is left that counts as one.
    """
    if name in pythons or name == "jax":
        return pythons.get(name, Path(sys.executable))
    wants = head(name)
    folder, interpreter = BUILD / name, BUILD / name / "bin" / "python"
    marker, contents = folder / "made-from.txt", repr(wants)  # written last
    if marker.is_file() and marker.read_text("utf-8") == contents:
        return interpreter
    say(f"{name}: uv makes an environment in {folder}: {', '.join(wants['dependencies'])}")
    _make(name, folder, interpreter, wants)
    trouble = _tried([str(interpreter), str(script(name))])
    if trouble:
        raise UnavailableError(f"it was installed, but {trouble}")
    marker.write_text(contents, "utf-8")
    return interpreter


def _make(name: str, folder: Path, interpreter: Path, wants: Mapping[str, Any]) -> None:
    if importlib.util.find_spec("uv"):
        uv = [sys.executable, "-m", "uv"]
    elif shutil.which("uv"):
        uv = ["uv"]
    else:
        raise UnavailableError(f"uv is not installed; `pip install uv`, or --python {name}=PATH")
    make = [*uv, "venv", "--clear", "--no-project", "--python", wants["requires-python"], str(folder)]
    install = [*uv, "pip", "install", "--python", str(interpreter)]
    if trouble := _tried(make):
        raise UnavailableError(trouble)
    # uv knows where PyTorch's builds are, and takes the one without CUDA where there is no GPU. Where it
    # cannot reach them, whatever the package index has is good, too.
    backends = [["--torch-backend", "auto"], []] if name == "torch" else [[]]
    for backend in backends:
        trouble = _tried([*install, *backend, *wants["dependencies"]])
        if not trouble:
            return
    raise UnavailableError(trouble)


def _tried(command: list[str]) -> str:
    """Run a command, and return "" or, in one line, why it failed."""
    settings = {uv: os.environ[pip] for pip, uv in PIP_SETTINGS.items() if os.environ.get(pip)}
    left_out = () if command[0] == sys.executable else OF_OUR_PYTHON
    ours = {name: value for name, value in os.environ.items() if name not in left_out}
    try:
        done = subprocess.run(
            command,
            env={**settings, **ours},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except OSError as e:
        return f"{command[0]} does not start: {e.strerror or e}"
    if done.returncode == 0:
        return ""
    lines = [" ".join(line.split()) for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"error:|\w*Error\b|× ", line)]
    return (errors or lines or [f"status {done.returncode}"])[-1][:200]
