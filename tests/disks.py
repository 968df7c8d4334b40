"""Disks that refuse: full, read-only, and folders whose permissions bind root too."""

import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def mounted(folder, *, size):
    """A disk of so many bytes and 500 files in this folder; the test is skipped where nobody may mount it."""
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    if _mount("-t", "tmpfs", "-o", f"size={size},nr_inodes=500", "tmpfs", str(folder)).returncode:
        pytest.skip("this container does not let root mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk):
    ballast = disk / "ballast"
    with pytest.raises(OSError, match="No space left on device"), ballast.open("wb", buffering=0) as f:
        while f.write(bytes(1024)):
            pass
    return ballast


def make_read_only(disk):
    assert _mount("-o", "remount,ro", str(disk)).returncode == 0


def _mount(*arguments):
    return subprocess.run(["mount", *arguments], capture_output=True, check=False)


def bound_by_permissions():
    """The words before a command that make root obey permissions, as others do; None where there are none."""
    if os.geteuid():
        return []
    program = shutil.which("setpriv")
    return [program, "--bounding-set=-dac_override,-dac_read_search"] if program else None
