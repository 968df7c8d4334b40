import threading

import numpy as np
import pytest

from jaxperf.measure.memory import MemorySampler

MB = 1_000_000
KNOWN = 200 * MB  # far over what a test process allocates by itself


def look_again(memory):
    """Return once the sampler has looked twice more, so that at least one look began after this call."""
    looks, far = len(memory.seconds), threading.Event()
    for _ in range(60_000):
        if len(memory.seconds) >= looks + 2:
            return
        far.wait(0.001)
    raise AssertionError("the sampler stopped looking")


def test_an_allocation_of_known_size_is_seen_and_its_end_too():
    with MemorySampler(interval_s=0.001) as memory:
        block = np.ones(KNOWN, np.uint8)
        look_again(memory)
        del block
        look_again(memory)
    assert 0.9 * KNOWN < memory.increase_bytes < 1.25 * KNOWN
    assert memory.peak_bytes == memory.base_bytes + memory.increase_bytes
    before_and_after = memory.resident_bytes[-1] - memory.base_bytes
    assert abs(before_and_after) < 0.25 * KNOWN, "the difference of two looks would have missed it, too"


def test_its_thread_ends_with_the_body_however_that_ends():
    with pytest.raises(ValueError, match="from the body"), MemorySampler() as memory:
        assert any(t.name == "jaxperf-memory" for t in threading.enumerate())
        raise ValueError("from the body")
    assert all(t.name != "jaxperf-memory" for t in threading.enumerate())
    assert len(memory.resident_bytes) >= 2
