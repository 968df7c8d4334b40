"""Collect what a bare GPU machine without a network needs: sources, Fashion-MNIST, wheels, two scripts.

The machine has Python 3.12, JAX 0.11.2 for CUDA 13, PyTorch 2.11 and what they bring. The folder takes about
45 MB; with more than 64 MiB it is refused.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path

from jaxperf.errors import JaxperfError
from tools import bundle

MOST = 64 << 20  # bytes that travel to the machine
PYTHON, GLIBC = "3.12", 28
IMAGE = {"jax": "0.11.2", "jaxlib": "0.11.2", "numpy": "2.5.2", "optax": "0.2.8"}  # as it was on 2026-11-26
# What the image lacked then; the other requirements of jaxperf were there.
LACKING = (
    "docstring-parser", "fastjsonschema", "flax", "jsonschema", "jsonschema-specifications", "jupyter-core",
    "nbformat", "orbax-checkpoint", "platformdirs", "referencing", "rpds-py", "traitlets", "typeguard",
    "tyro",
)  # fmt: skip
LEFT_OUT = ("benchmarks/results/", "docs/experiments/", "tests/fixtures/")  # the checks read none of them


def main(out: Path) -> int:
    """Fill the folder, and print what it holds and how to use it.

    Raises:
      JaxperfError: no checkout, no index or no data, or the folder is larger than what may travel.
    """
    out = out.absolute()
    for old in (out / "wheels", out / "data"):
        shutil.rmtree(old, ignore_errors=True)
    count = pack_sources(out)
    bundle.collect_data(out)
    wheels = collect_wheels(out)
    for name in ("setup.sh", "check.sh"):
        shutil.copy(Path(__file__).with_name(name), out / name)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if size > MOST:
        raise JaxperfError(f"{out} has {size / 2**20:.0f} MiB; at most {MOST >> 20} may travel")
    print(f"{count} source files, 4 data files, {wheels} wheels: {size / 2**20:.0f} MiB in {out}")
    print(f"there: OUT=/tmp/gpu_check bash {out.name}/check.sh    # at most 8 minutes")
    return 0


def pack_sources(out: Path, root: Path = bundle.ROOT) -> int:
    """Write `out`/sources.tar.gz: the files of the checkout as they are, and the newest commit's identity.

    Returns:
      How many files there are, without those of git.
    """
    with tempfile.TemporaryDirectory() as folder:
        bundle.collect_history(Path(folder), root)
        listed = bundle.git("-C", str(root), "ls-files", "-co", "--exclude-standard").splitlines()
        names = [n for n in listed if not n.startswith(LEFT_OUT) and (root / n).is_file()]
        out.mkdir(parents=True, exist_ok=True)
        with tarfile.open(out / "sources.tar.gz", "w:gz") as archive:
            for name in names:
                archive.add(root / name, name)
            archive.add(Path(folder, "jaxperf.git"), ".git")
    return len(names)


def collect_wheels(out: Path) -> int:
    """Bring the wheels that the image lacks into `out`/wheels, of versions that fit the rest of it."""
    target = bundle.Target(PYTHON, GLIBC, "x86_64")
    chosen = bundle.resolve(bundle.requirements("cpu", dev=False), target, IMAGE)
    (out / "wheels").mkdir(exist_ok=True)
    bundle.download({name: chosen[name] for name in LACKING}, target, out / "wheels")
    return len(list((out / "wheels").glob("*.whl")))
