"""What a machine can do at best: work is counted exactly, and sizes grow until a call lasts."""

import itertools
import math
from pathlib import Path

import jax
import pytest

from jaxperf.measure import ceilings
from jaxperf.result import Measurement


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that last 0.1 ms are long enough for a test."""
    monkeypatch.setattr(ceilings, "LONG_S", 1e-4)
    monkeypatch.setattr(ceilings, "measure", counted)


def counted(fn: object, *args: object, name: str = "", loops: int | None = None, **_: object) -> Measurement:
    """In place of `measure`: run it twice, and say that it took a second and two."""
    for _ in range(2):
        jax.block_until_ready(fn(*args))  # type: ignore[operator]
    return Measurement(name, "s", (1.0, 2.0), loops=loops or 3)


def test_a_product_counts_two_operations_per_element_of_each_row_and_column() -> None:
    for dtype in ceilings.DTYPES:
        rate = ceilings.matrix_rate(dtype)
        assert (rate.unit, rate.quantity, rate.configuration) == ("FLOP/s", ceilings.MATRIX, dtype)
        best, half = rate.values
        assert best == 2 * half and best % (2 * ceilings.SMALLEST_SIDE**3) == 0


@pytest.mark.parametrize(
    "backend, dtype, quickest_s, sides",
    [
        ("cpu", "float32", 1.0, [16]),
        ("cpu", "float32", 1e-6, [16, 64]),
        ("gpu", "float32", 1e-6, [64]),
        ("gpu", "bfloat16", 1.0, [64]),
        ("gpu", "float64", 1.0, [32]),
        ("gpu", "int8", 1e-6, [32, 64]),
    ],
)
def test_a_gpu_compiles_one_product_of_each_fast_dtype(
    monkeypatch: pytest.MonkeyPatch, backend: str, dtype: str, quickest_s: float, sides: list[int]
) -> None:
    for name, side in (("SMALLEST_SIDE", 16), ("SLOW_SIDE", 32), ("LARGEST_SIDE", 64)):
        monkeypatch.setattr(ceilings, name, side)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    multiplied = []

    def pretended_s(product: object, x: jax.Array) -> float:
        multiplied.append(len(x))
        return quickest_s

    monkeypatch.setattr(ceilings, "_seconds", pretended_s)
    count = math.ceil(ceilings.LONG_S / quickest_s)
    assert max(ceilings.matrix_rate(dtype).values) == 2 * count * sides[-1] ** 3
    assert multiplied == sides


def test_memory_counts_what_is_read_and_written_in_all_turns() -> None:
    rate = ceilings.memory_rate(2**14)
    assert (rate.unit, rate.configuration, rate.name) == ("bytes/s", "16384", "array of 16 KiB")
    turns = rate.values[0] / (2 * 2**14)
    assert turns.is_integer() and turns >= 1 and int(turns) & (int(turns) - 1) == 0


def test_copies_are_real_and_go_both_ways() -> None:
    there, back = ceilings.copy_rates(count=2)
    assert [m.configuration for m in (there, back)] == [ceilings.TO_DEVICE, ceilings.TO_HOST]
    assert len(there.values) == len(back.values) == 2 and there.quantity == back.quantity == ceilings.COPY


def test_copies_grow_no_further_than_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    monkeypatch.setattr(ceilings, "LARGEST_COPY", 2**23)
    monkeypatch.setattr(ceilings, "_seconds", lambda copy, host, device: copied.append(host.nbytes) or 1e-9)
    ceilings.copy_rates(count=1)
    assert copied == [2**22, 2**23]


def test_an_empty_program_is_called_both_ways() -> None:
    assert [(m.quantity, m.configuration) for m in ceilings.call_costs()] == [
        ("dispatch", "each"),
        ("dispatch", "end"),
    ]


def test_arrays_grow_fourfold_up_to_four_times_the_last_cache_and_never_fill_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for last, free, largest in ((2**22, 2**40, 2**28), (2**27, 2**40, 2**28), (2**28, 2**40, 2**30),
                                (2**25, 2**30, 2**26), (2**25, 2**10, 2**14)):  # fmt: skip
        monkeypatch.setattr(ceilings, "cache_sizes", lambda last=last: {"L3": last})
        monkeypatch.setattr(ceilings, "free_bytes", lambda free=free: free)
        sizes = ceilings.array_sizes()
        assert sizes[0] == ceilings.SMALLEST and sizes[-1] == largest
        assert all(b == 4 * a for a, b in itertools.pairwise(sizes))


def test_a_gpu_gets_a_handful_of_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(ceilings, "free_bytes", lambda: 2**36)
    assert ceilings.array_sizes() == (2**14, 2**18, 2**22, 2**26, 2**30)


def test_an_array_belongs_to_the_first_cache_that_holds_it() -> None:
    known = {"L1": 32_768, "L2": 524_288}
    levels = [ceilings.level_of(size, known) for size in (16_384, 32_768, 262_144, 524_288)]
    assert levels == ["L1 cache", "L2 cache", "L2 cache", "memory"]
    assert ceilings.level_of(16_384, {}) == ""


def test_caches_are_read_from_the_system_and_instructions_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i, (level, kind, size) in enumerate(
        (("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"))
    ):
        for name, word in (("level", level), ("type", kind), ("size", size)):
            (tmp_path / f"index{i}").mkdir(exist_ok=True)
            (tmp_path / f"index{i}" / name).write_text(word + "\n")
    (tmp_path / "index9").mkdir()  # of which the system says nothing
    monkeypatch.setattr(ceilings, "_CACHES", tmp_path)
    assert ceilings.cache_sizes() == (
        {"L1": 48 * 1024, "L2": 2**21} if jax.default_backend() == "cpu" else {}
    )


def test_a_size_grows_by_what_is_missing_to_a_long_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "LONG_S", 0.02)
    assert [ceilings._growth(s, dimensions=3) for s in (0.015, 0.003, 4e-4, 5.5e-5, 1e-6)] == [2, 2, 4, 8, 8]
    assert [ceilings._growth(s, most=64) for s in (0.019, 0.005, 1e-3, 1e-6)] == [2, 4, 16, 64]
