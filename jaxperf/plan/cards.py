"""The GPUs and TPUs that a step can be planned for; `data/cards.toml` has the figures and their sources."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.flags import did_you_mean

DATA = Path(__file__).parent / "data"
# dtypes that have the peak of another one in the tables
PEAKS = {"float16": "bfloat16", "float8_e4m3fn": "int8", "float8_e5m2": "int8"}


@dataclass(frozen=True)
class Card:
    """A GPU with its node; or a TPU, which has slices, and no rates: its plans have no times.

    Bandwidths are bytes/s in one direction; a `share` is what a program reaches of a data sheet's figure.
    """

    name: str  # the value of --for
    title: str  # the driver's or the vendor's name
    memory_bytes: int
    slices: Sequence[str] = ()  # of a TPU, such as "4x8"
    cores: int = 0  # streaming multiprocessors
    fp32_per_core: int = 0
    clock_ghz: float = 0.0
    memory_bandwidth: int = 0
    memory_share: float = 0.0
    matrix_share: float = 0.0
    peak_flops: Mapping[str, float] = field(default_factory=dict)  # of dense matrix products by dtype
    link_bandwidth: float = 0.0  # over all NVLinks of the card
    all_reduce_bandwidth: float = 0.0  # bus bandwidth over a full node, above a ring's where NVSwitch reduces
    link_latency_s: float = 0.0  # of the smallest collective inside a node
    link_pipeline: float = 0.0  # cost of filling the links' pipeline, in sqrt(seconds)
    nic_bandwidth: float = 0.0  # the card's share of its node's network cards
    per_node: int = 8
    figures: Mapping[str, Any] = field(default_factory=dict)  # all that `data/cards.toml` says of it
    target: str = ""  # XLA's own description of a card that is here; "" for one made from these figures

    @property
    def is_tpu(self) -> bool:
        return bool(self.slices)

    @property
    def bandwidth(self) -> float:  # bytes/s, in a program with large arrays
        return self.memory_bandwidth * self.memory_share

    def matrix_flops(self, dtype: str) -> float:  # per second, in a large product
        return self.matrix_share * self.peak_flops.get(PEAKS.get(dtype, dtype), self.peak_flops["float32"])

    def nodes_of(self, count: int) -> tuple[int, int]:  # number of nodes, and of cards in each
        if count < 1:
            raise JaxperfError(f"{count} devices are none; give numbers from 1 on, --devices 1,8,64")
        if count > self.per_node and count % self.per_node:
            low = count // self.per_node * self.per_node
            raise JaxperfError(
                f"{count} devices do not fill nodes of {self.per_node}; take {low} or {low + self.per_node}"
            )
        return max(1, count // self.per_node), min(count, self.per_node)

    def slice_of(self, count: int) -> str:  # of a TPU
        shapes = {math.prod(map(int, shape.split("x"))): shape for shape in self.slices}
        if count not in shapes:
            near = [n for n in shapes if n < count][-1:] + [n for n in shapes if n > count][:1]
            raise JaxperfError(
                f"Google lists no slice of {self.name} with {count} chips; take {' or '.join(map(str, near))}"
            )
        return shapes[count]


_TABLES = tomllib.loads((DATA / "cards.toml").read_text(encoding="utf-8"))
_FIELDS = {each.name for each in fields(Card)}
CARDS = {
    name: Card(name, figures=table, **{key: table[key] for key in table if key in _FIELDS})
    for name, table in _TABLES.items()
}


def find_card(name: str) -> Card:
    """Return the GPU or TPU with this name; "tpu v5e" is also "v5e"."""
    wanted = name.strip().lower().removeprefix("tpu").strip()
    if wanted in CARDS:
        return CARDS[wanted]
    raise JaxperfError(
        f"no card {name!r}{did_you_mean(wanted, CARDS)}; there are {', '.join(CARDS)}, and this"
    )
