"""Model the time of a collective inside a node and between nodes.

Inside a node, x is the time of the bytes at the published bandwidth, and a collective takes

    latency + x + pipeline sqrt(x)

The last term is the cost of filling a pipeline of chunks, for the best number of chunks. Between nodes, NCCL
reduces inside each node first, so that each card sends only its share. The exchange between nodes overlaps
the part inside the nodes, and the slower of the two counts.

All constants come from the tables that benchmarks/plan/validate.py names "fits"; its other tables test them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxperf.plan.cards import Card
from jaxperf.plan.collectives import Collective

RING_SHARE = 0.82  # share of the links' bandwidth that a ring reaches: 367 of 450 GB/s on eight H200s
NETWORK_SHARE = 0.82  # share of the network cards' bandwidth that a large exchange reaches: h100-16-ib
NETWORK_PIPELINE = 15e-3  # between nodes, in sqrt(seconds): h100-16-ib
HOP_S = 10e-6  # a guess: for each doubling of the nodes after the first, two messages of 5 us along a tree
# the correction factors of nccl-tests: bytes that cross a card's link for each byte of the array
FACTORS = {
    "all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "all-to-all": 1.0, "ragged-all-to-all": 1.0,
    "collective-permute": 1.0, "collective-broadcast": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class Network:
    """The network between nodes.

    Attributes:
      name: the value of `--network`.
      latency_s: seconds of the smallest all-reduce over two nodes.
      source: the table of benchmarks/plan/collectives.csv that sets the latency.
      bandwidth: bytes/s of a card's share, in one direction; None for the card's usual network cards.
      of_card: the same for cards that differ.
      pipeline: cost of filling the pipeline, in sqrt(seconds).
    """

    name: str
    latency_s: float
    source: str
    bandwidth: float | None = None
    of_card: Mapping[str, float] = field(default_factory=dict)
    pipeline: float = NETWORK_PIPELINE

    def of(self, card: Card) -> float:
        """Return the bytes/s of a card's share of its node's network cards."""
        return self.of_card.get(card.name) or self.bandwidth or card.nic_bandwidth


NETWORKS = {
    network.name: network
    for network in (
        Network("infiniband", 42e-6, "h100-16-ib"),  # also Ethernet of 400 Gb/s a card with RDMA
        # nodes of AWS: p5 and p6 have 400 Gb/s a card, p4de has four network cards of 100 Gb/s
        Network("efa", 107e-6, "h100-16-efa", bandwidth=50e9, of_card={"a100": 6.25e9}),
        Network(
            "tcpxo", 123e-6, "h100-16", bandwidth=25e9, pipeline=40e-3
        ),  # a host process sends each chunk
    )
}


def collective_seconds(
    card: Card, collective: Collective, network: Network = NETWORKS["infiniband"]
) -> float:
    """Return the predicted seconds of one run of a collective."""
    size, nodes = collective.group_size, collective.nodes(card.per_node)
    if collective.kind == "collective-permute":  # groups are pairs
        return exchange_s(card, "collective-permute", collective.bytes, 2, nodes, network)
    return exchange_s(card, collective.kind, collective.bytes, size, nodes, network)


def exchange_s(
    card: Card, kind: str, size: float, devices: int, nodes: int, network: Network = NETWORKS["infiniband"]
) -> float:
    """Return the seconds of a collective over `size` bytes among `devices` cards of `nodes` nodes.

    Args:
      card: the card.
      kind: kind of the collective.
      size: bytes of the whole array, as `Collective.bytes`.
      devices: cards in one group.
      nodes: number of nodes with these cards.
      network: the network between nodes.
    """
    if devices < 2:
        return 0.0
    in_node = max(1, devices // nodes)
    inside = crossing(kind, size, in_node) / link_bandwidth(card, kind, in_node)
    if nodes == 1:
        return card.link_latency_s + inside + card.link_pipeline * math.sqrt(inside)
    between = _between(kind, size, nodes, in_node) / (NETWORK_SHARE * network.of(card))
    latency = network.latency_s + HOP_S * (math.log2(nodes) - 1)
    pipeline = max(network.pipeline * math.sqrt(between), card.link_pipeline * math.sqrt(inside))
    return latency + max(between, inside) + pipeline


def crossing(kind: str, size: float, devices: int) -> float:
    """Return the bytes that each device sends, in one node."""
    if kind in ("collective-permute", "collective-broadcast"):
        return size if devices > 1 else 0.0
    return FACTORS[kind] * (devices - 1) / devices * size


def _between(kind: str, size: float, nodes: int, in_node: int) -> float:
    """Return the bytes that each card sends over the network."""
    if kind in ("collective-permute", "collective-broadcast"):
        return size
    if "all-to-all" in kind:  # no reduction inside the node makes it smaller
        return (nodes - 1) / nodes * size
    return FACTORS[kind] * (nodes - 1) / nodes * size / in_node


def link_bandwidth(card: Card, kind: str, devices: int) -> float:
    """Return the bus bandwidth inside a node; NVSwitch reduces for all-reduces over more than half of it."""
    if kind == "all-reduce" and devices > card.per_node // 2:
        return card.all_reduce_bandwidth
    return RING_SHARE * card.link_bandwidth
