"""Disks that refuse: full after some bytes, and folders whose permissions bind root too."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(after_bytes: int = 100) -> Iterator[None]:
    """Let no file of this process grow beyond `after_bytes`: the write then breaks off, as on a full disk.

    The kernel refuses with EFBIG instead of ENOSPC, and needs no disk of its own for it.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def bound_by_permissions() -> list[str]:
    """The words before a command that make root obey permissions; [] where there is no such program."""
    program = shutil.which("setpriv")
    return [program, "--bounding-set=-dac_override,-dac_read_search"] if program else []
