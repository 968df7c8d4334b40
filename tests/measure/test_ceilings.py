import itertools

import jax
import pytest

from jaxperf.measure import ceilings
from jaxperf.result import Measurement


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Calls that last 0.1 ms are long enough for a test."""
    monkeypatch.setattr(ceilings, "LONG_S", 1e-4)
    monkeypatch.setattr(ceilings, "measure", counted)


def counted(fn, *args, name="", loops=None, **_):
    """In place of `measure`: run it twice, and say that it took a second and two."""
    for _ in range(2):
        jax.block_until_ready(fn(*args))
    return Measurement(name, "s", (1.0, 2.0), loops=loops or 3)


def test_a_product_counts_two_operations_per_element_and_memory_what_is_read_and_written():
    for dtype in ceilings.DTYPES:
        rate = ceilings.matrix_rate(dtype)
        assert (rate.unit, rate.quantity, rate.configuration) == ("FLOP/s", ceilings.MATRIX, dtype)
        best, half = rate.values
        assert best == 2 * half and best % (2 * ceilings.SMALLEST_SIDE**3) == 0
    rate = ceilings.memory_rate(2**14)
    assert (rate.unit, rate.configuration, rate.name) == ("bytes/s", "16384", "array of 16 KiB")
    turns = rate.values[0] / (2 * 2**14)
    assert turns.is_integer() and turns >= 1 and int(turns) & (int(turns) - 1) == 0


def test_copies_are_real_and_go_both_ways():
    there, back = ceilings.copy_rates(count=2)
    assert [m.configuration for m in (there, back)] == [ceilings.TO_DEVICE, ceilings.TO_HOST]
    assert len(there.values) == len(back.values) == 2 and there.quantity == back.quantity == ceilings.COPY


def test_arrays_grow_fourfold_and_never_fill_memory(monkeypatch):
    for free, largest in ((2**40, 2**30), (2**30, 2**26), (2**10, 2**14)):
        monkeypatch.setattr(ceilings, "free_bytes", lambda free=free: free)
        sizes = ceilings.array_sizes()
        assert sizes[0] == ceilings.SMALLEST and sizes[-1] == largest
        assert all(b == 4 * a for a, b in itertools.pairwise(sizes))
