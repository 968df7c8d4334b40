"""The Python of each framework: one that is there already, or an environment that uv makes.

What an environment holds stands in the head of `with_NAME.py` (PEP 723), so `uv run --script with_NAME.py`
works, too. The runner makes it in `build/frameworks/NAME`, because `uv run` cannot be told to take PyTorch's
build without CUDA where there is no GPU.
"""

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


def for_another_python(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without those that lead another Python to our packages."""
    left = {name: value for name, value in variables.items() if name not in OF_OUR_PYTHON}
    return {**left, "PYTHONNOUSERSITE": "1"}


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
        try:
            _run([str(pythons[name]), str(script(name))])
        except UnavailableError as e:
            raise JaxperfError(f"--python {pair}: {e}; name a Python that has {name}") from None
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
    wants, interpreter = head(name), BUILD / name / "bin" / "python"
    marker = BUILD / name / "made-from.txt"  # written last
    if marker.is_file() and marker.read_text("utf-8") == repr(wants):
        return interpreter
    if importlib.util.find_spec("uv"):
        uv = [sys.executable, "-m", "uv"]
    elif shutil.which("uv"):
        uv = ["uv"]
    else:
        raise UnavailableError(f"uv is not installed; `pip install uv`, or --python {name}=PATH")
    say(f"{name}: uv makes an environment in build/frameworks/{name}: {', '.join(wants['dependencies'])}")
    _run([*uv, "venv", "--clear", "--no-project", "--python", wants["requires-python"], str(BUILD / name)])
    install = [*uv, "pip", "install", "--python", str(interpreter), *wants["dependencies"]]
    try:
        # uv knows where PyTorch's builds are, and takes the one without CUDA where there is no GPU.
        _run([*install, "--torch-backend", "auto"] if name == "torch" else install)
    except UnavailableError:
        if name != "torch":
            raise
        _run(install)  # whatever the package index has
    _run([str(interpreter), str(script(name))])
    marker.write_text(repr(wants), "utf-8")
    return interpreter


def _run(command: list[str]) -> None:
    """Run a command; if it fails, raise UnavailableError, whose line says why."""
    settings = {uv: os.environ[pip] for pip, uv in PIP_SETTINGS.items() if os.environ.get(pip)}
    variables = {**settings, **os.environ}
    if command[0] != sys.executable:
        variables = for_another_python(variables)
    options: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(command, env=variables, **options)
    except OSError as e:
        raise UnavailableError(f"{command[0]} does not start: {e.strerror or e}") from None
    if done.returncode:
        lines = [" ".join(line.split()) for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"error:|\w*Error\b|× ", line)]
        raise UnavailableError((errors or lines or [f"status {done.returncode}"])[-1][:200])
