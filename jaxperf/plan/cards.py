"""The GPUs and TPUs that a step can be planned for; `data/` has the figures and their sources."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError

DATA = Path(__file__).parent / "data"
# dtypes that have the peak of another one in the tables
PEAKS = {"float16": "bfloat16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}


@dataclass(frozen=True)
class Card:
    """A GPU with its node.

    Attributes:
      name: the value of `--for`.
      title: the driver's name.
      capability: CUDA compute capability, major and minor.
      cores: streaming multiprocessors.
      memory_bytes: memory of the card.
      peak_flops: FLOP/s of dense matrix products by dtype, from the data sheet.
      matrix_share: share of that which a large matrix product reaches.
      memory_bandwidth: bytes/s from the data sheet.
      memory_share: share of that which a program with large arrays reaches.
      l2_bytes: L2 cache.
      clock_ghz: boost clock.
      shared_bytes: shared memory per core.
      fp32_per_core: float32 units per core.
      links: NVLinks of the card.
      link_bandwidth: bytes/s in one direction over all NVLinks.
      all_reduce_bandwidth: bus bandwidth of a large all-reduce over a full node; it exceeds that of a ring if
        NVSwitch reduces inside the switch (NVLink SHARP).
      link_latency_s: seconds of the smallest collective inside a node.
      link_pipeline: cost of filling the links' pipeline, in sqrt(seconds).
      nic_bandwidth: bytes/s of the card's share of its node's network cards.
      pcie_bandwidth: bytes/s in one direction to the host.
      source: the data sheets.
      per_node: cards per node.
      target: XLA's own description of a card that is here; "" for one made from these figures.
    """

    name: str
    title: str
    capability: tuple[int, int]
    cores: int
    memory_bytes: int
    peak_flops: Mapping[str, float]
    matrix_share: float
    memory_bandwidth: float
    memory_share: float
    l2_bytes: int
    clock_ghz: float
    shared_bytes: int
    fp32_per_core: int
    links: int
    link_bandwidth: float
    all_reduce_bandwidth: float
    link_latency_s: float
    link_pipeline: float
    nic_bandwidth: float
    pcie_bandwidth: float
    source: str
    per_node: int = 8
    target: str = ""

    def matrix_flops(self, dtype: str) -> float:
        """Return the FLOP/s that a large matrix product of this dtype reaches."""
        peak = self.peak_flops.get(PEAKS.get(dtype, dtype), self.peak_flops["float32"])
        return peak * self.matrix_share

    @property
    def bandwidth(self) -> float:
        """Return the bytes/s that a program with large arrays reaches."""
        return self.memory_bandwidth * self.memory_share


@dataclass(frozen=True)
class Tpu:
    """A TPU, for which a plan has collectives and memory, and no times.

    Attributes:
      name: the value of `--for`.
      title: the vendor's name.
      memory_bytes: memory of a chip.
      slices: shapes of the available slices, such as "4x8".
    """

    name: str
    title: str
    memory_bytes: int
    slices: tuple[str, ...]

    def slice_of(self, count: int) -> str:
        """Return the shape of the slice with `count` chips.

        Raises:
          JaxperfError: there is none; the message names the nearest ones.
        """
        shapes = {math.prod(map(int, shape.split("x"))): shape for shape in self.slices}
        if count not in shapes:
            near = [n for n in shapes if n < count][-1:] + [n for n in shapes if n > count][:1]
            raise JaxperfError(
                f"Google lists no slice of {self.name} with {count} chips; take {' or '.join(map(str, near))}"
            )
        return shapes[count]


def _tables(name: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a file, with tuples for lists."""
    with (DATA / name).open("rb") as file:
        tables = tomllib.load(file)
    return {
        card: {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
        for card, table in tables.items()
    }


CARDS = {name: Card(name=name, **table) for name, table in _tables("cards.toml").items()}
TPUS = {name: Tpu(name=name, **table) for name, table in _tables("tpus.toml").items()}


def find_device(name: str) -> Card | Tpu:
    """Return the card or TPU with this name; "tpu v5e" is also "v5e".

    Raises:
      JaxperfError: there is none; the message names the nearest.
    """
    return TPUS.get(name.strip().lower().removeprefix("tpu").strip()) or find_card(name)


def find_card(name: str) -> Card:
    """Return the GPU with this name.

    Raises:
      JaxperfError: there is none; the message names the nearest.
    """
    wanted = name.strip().lower()
    if wanted in CARDS:
        return CARDS[wanted]
    names = [*CARDS, *TPUS]
    near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.0)[0]
    raise JaxperfError(f"no card {name!r}; did you mean {near!r}? there are {', '.join(names)}, and this")
