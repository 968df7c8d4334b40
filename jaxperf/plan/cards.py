"""The GPUs that a step can be planned for; `data/cards.toml` has the figures and their sources."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxperf.errors import JaxperfError

DATA = Path(__file__).parent / "data"
TPU = re.compile(r"tpu|v[2-7][a-z]?(\W|$)")
# What the tables call by another name: half precision has one peak, 8 bits have one.
PEAKS = {"float16": "bfloat16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}


@dataclass(frozen=True)
class Card:
    """A GPU with its node.

    Attributes:
      name: as given after `--for`.
      title: as the driver names it.
      capability: CUDA compute capability, major and minor.
      cores: streaming multiprocessors.
      memory_bytes: of the card.
      peak_flops: FLOP/s of dense matrix products by dtype, from the data sheet.
      matrix_share: how much of that a large matrix product reaches.
      memory_bandwidth: bytes/s of the data sheet.
      memory_share: how much of that a program reaches that reads and writes large arrays.
      l2_bytes: of the cache that all cores share.
      clock_ghz: boost clock.
      shared_bytes: shared memory per core.
      fp32_per_core: float32 units per core.
      links: NVLinks of the card.
      link_bandwidth: bytes/s in one direction over all of its NVLinks.
      all_reduce_bandwidth: bus bandwidth of a large all-reduce over a full node; more than a ring's where
        NVSwitch adds up inside the switch (NVLink SHARP).
      nic_bandwidth: bytes/s of the card's share of its node's network cards.
      pcie_bandwidth: bytes/s in one direction to the host.
      source: the data sheets.
      per_node: cards of a node.
      target: XLA's own description, of a card that is here; "" for one made from these figures.
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
        """Bytes/s that a program reaches with large arrays."""
        return self.memory_bandwidth * self.memory_share


def _read() -> dict[str, Card]:
    with (DATA / "cards.toml").open("rb") as file:
        tables = tomllib.load(file)
    return {
        name: Card(name=name, **{**table, "capability": tuple(table["capability"])})
        for name, table in tables.items()
    }


CARDS = _read()


def find_card(name: str) -> Card:
    """Return the card with this name.

    Raises:
      JaxperfError: there is none; the message names the nearest.
    """
    wanted = name.strip().lower()
    if wanted in CARDS:
        return CARDS[wanted]
    if TPU.match(wanted):
        raise JaxperfError(
            f"{name} is a TPU, and the model of links is checked for GPUs only; for the program alone, pip "
            "install libtpu, and compile for jax.experimental.topologies.get_topology_desc('v5e:2x2', 'tpu')"
        )
    near = difflib.get_close_matches(wanted, CARDS, n=1, cutoff=0.0)[0]
    raise JaxperfError(f"no card {name!r}; did you mean {near!r}? there are {', '.join(CARDS)}, and this")
