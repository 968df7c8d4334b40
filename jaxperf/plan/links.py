"""Model the time of a collective inside a node and between nodes.

Inside a node, x is the time of the bytes at the published bandwidth, and a collective takes

    LATENCY + x + PIPELINE sqrt(x)

The last term is the cost of filling a pipeline of chunks, for the best number of chunks. Between nodes, NCCL
reduces inside each node first, so that each card sends only its share. The exchange between nodes overlaps
the part inside the nodes, and the slower of the two counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxperf.plan.cards import Card
from jaxperf.plan.collectives import Collective

# All constants are chosen from the tables of data/all_reduce.csv, those of a network from its own table.
LATENCY_S = 40e-6  # inside a node: the time of 32 KiB on eight A100s and H200s
PIPELINE = 5e-3  # inside a node, in sqrt(seconds): between the H200's curve (3e-3) and the A100's (7e-3)
RING_SHARE = 0.82  # share of the links' bandwidth that a ring reaches: 367 of 450 GB/s on eight H200s
NETWORK_SHARE = 0.85  # share of the network cards' bandwidth that a large exchange reaches
NETWORK_PIPELINE = 15e-3  # between nodes, in sqrt(seconds)
HOP_S = 10e-6  # for each doubling of the nodes after the first: NCCL's constants for a tree, 2 x 5 us
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
      bandwidth: bytes/s of a card's share, in one direction; None for the card's usual network cards.
      source: source of these figures.
      pipeline: cost of filling the pipeline, in sqrt(seconds).
    """

    name: str
    latency_s: float
    bandwidth: float | None
    source: str
    pipeline: float = NETWORK_PIPELINE


NETWORKS = {
    network.name: network
    for network in (
        Network("infiniband", 46e-6, None, "NVIDIA/nccl issue 1244: two nodes of eight H20, 400 Gb/s a card"),
        Network(
            "efa", 370e-6, 50e9, "ML Engineering, network: four nodes of eight B200, EFA, 400 Gb/s a card"
        ),
        Network(
            "tcpxo", 123e-6, 25e9, "lessizzmore/create-a3mega-ztan-fork: two nodes of H100, 200 Gb/s a card",
            pipeline=40e-3,  # from the same table: a host process sends each chunk
        ),
    )
}  # fmt: skip


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
        return LATENCY_S + inside + PIPELINE * math.sqrt(inside)
    between = _between(kind, size, nodes, in_node) / (
        NETWORK_SHARE * (network.bandwidth or card.nic_bandwidth)
    )
    latency = network.latency_s + HOP_S * (math.log2(nodes) - 1)
    pipeline = max(network.pipeline * math.sqrt(between), PIPELINE * math.sqrt(inside))
    return latency + max(between, inside) + pipeline


def crossing(kind: str, size: float, devices: int) -> float:
    """Return the bytes that each device sends, in one node or in a slice of TPUs."""
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
