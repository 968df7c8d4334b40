"""Which sources of Fashion-MNIST this machine has, found without asking the network or preparing anything."""

from __future__ import annotations

import os
import shlex
from importlib.util import find_spec
from pathlib import Path

from jaxperf.doctor.finding import Finding, checkout, install_self
from jaxperf.errors import JaxperfError

DEBIAN_PACKAGE = "apt-get install dataset-fashion-mnist"


def data_findings() -> list[Finding]:
    """A finding for each source in the order in which "auto" tries them; the mini subset is essential."""
    try:
        from jaxperf import data
    except ImportError as e:
        return [Finding("data", "broken", f"jaxperf.data cannot be imported: {e}", install_self())]
    full = [f for f in (_folder(), _tfds(), _download()) if f]
    if not any(f.state == "ok" for f in full):
        text = "no full Fashion-MNIST on this machine; sections download it or take the mini subset"
        full.append(Finding("data", "mend", text, DEBIAN_PACKAGE))
    try:
        mini = data.fashion_mnist(source="mini")
    except JaxperfError as e:
        root = checkout()
        again = shlex.join(["git", "-C", str(root), "checkout", "--", "jaxperf/data/mini"]) if root else ""
        return [*full, Finding("data", "broken", str(e), again)]
    counts = f"{len(mini.train_images):,} + {len(mini.test_images):,} images"
    return [*full, Finding("data", "ok", f"mini: {counts} in the package")]


def _folder() -> Finding | None:
    """The folder that was named, which must be right, else Debian's, read in full."""
    from jaxperf.data import fashion_mnist
    from jaxperf.data.folder import DEBIAN_FOLDER, named_folder

    named = named_folder(None)
    if named is None and not DEBIAN_FOLDER.is_dir():
        return None
    try:
        found = fashion_mnist(source="folder")
    except JaxperfError as e:
        return Finding("data", "mend", str(e), "" if named is None else "unset JAXPERF_DATA")
    counts = f"{len(found.train_images):,} + {len(found.test_images):,} images"
    return Finding("data", "ok", f"{found.source}: {counts}")


def _tfds() -> Finding | None:
    from jaxperf.data.tfds import TFDS_VARIABLE

    missing = [name for name in ("tensorflow_datasets", "tensorflow") if find_spec(name) is None]
    if missing:
        return Finding("data", "note", f"tfds: {missing[0]} is not installed", install_self("tfds"))
    folder = Path(os.environ.get(TFDS_VARIABLE) or "~/tensorflow_datasets").expanduser() / "fashion_mnist"
    if any(folder.glob("*/dataset_info.json")):
        return Finding("data", "ok", f"tfds: prepared in {folder}")
    return Finding("data", "note", f"tfds: not prepared in {folder}; a section that wants it prepares it")


def _download() -> Finding | None:
    """Whether an earlier download lies in the cache; sizes tell, the reader checks the SHA-256."""
    from jaxperf.data.download import cache_folder
    from jaxperf.data.origin import ORIGIN_FILES

    paths = [(cache_folder() / file.name, file.size_bytes) for file in ORIGIN_FILES]
    if all(path.is_file() and path.stat().st_size == size for path, size in paths):
        return Finding("data", "ok", f"download: kept in {cache_folder()}")
    return None
