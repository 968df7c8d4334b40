"""Model the time of a collective inside a node and between nodes.

Inside a node, x is the time of the bytes at the published bandwidth, and a collective takes

    latency + x + pipeline sqrt(x)

The last term is the cost of filling a pipeline of chunks, for the best number of chunks. Between nodes, NCCL
reduces inside each node first, so that each card sends only its share. The exchange between nodes overlaps
the part inside the nodes, and the slower of the two counts.

All constants come from the tables that benchmarks/plan/validate.py names "fits"; its other tables test them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxperf.plan.cards import Card

RING_SHARE = 0.82  # share of the links' bandwidth that a ring reaches: 367 of 450 GB/s on eight H200s
NETWORK_SHARE = 0.82  # share of the network cards' bandwidth that a large exchange reaches: h100-16-ib
NETWORK_PIPELINE = 15e-3  # between nodes, in sqrt(seconds): h100-16-ib
HOP_S = 10e-6  # a guess: for each doubling of the nodes after the first, two messages of 5 us along a tree
_WHOLE = ("collective-permute", "collective-broadcast")  # each device sends all that it has, once
_BY_NODE = ("all-reduce", "all-gather", "reduce-scatter")  # a node's cards share what crosses the network


@dataclass(frozen=True)
class Network:
    name: str  # the value of --network
    latency_s: float  # of the smallest all-reduce over two nodes
    source: str  # the table of benchmarks/plan/collectives.csv that sets the latency
    # bytes/s of a card's share of its node's network cards, in one direction, where they are not the usual
    bandwidth: Mapping[str, float] = field(default_factory=dict)
    pipeline: float = NETWORK_PIPELINE


_NETWORKS = (
    # also Ethernet of 400 Gb/s a card with RDMA
    Network("infiniband", 42e-6, "h100-16-ib"),
    # nodes of AWS: p5 and p6 have 400 Gb/s a card, p4de has four network cards of 100 Gb/s
    Network("efa", 107e-6, "h100-16-efa", {"a100": 6.25e9}),
    # a host process sends each chunk
    Network("tcpxo", 123e-6, "h100-16", {"h100": 25e9}, 40e-3),
)
NETWORKS = {network.name: network for network in _NETWORKS}


def exchange_s(
    card: Card, kind: str, size: float, devices: int, nodes: int, network: Network = NETWORKS["infiniband"]
) -> float:
    """Return the seconds of a collective over `size` bytes (of the whole array) among cards of some nodes."""
    in_node = max(1, devices // nodes)
    bandwidth = RING_SHARE * card.link_bandwidth
    if kind == "all-reduce" and in_node > card.per_node // 2:  # NVSwitch reduces
        bandwidth = card.all_reduce_bandwidth
    inside = crossing(kind, size, in_node) / bandwidth
    if nodes == 1:
        return card.link_latency_s + inside + card.link_pipeline * math.sqrt(inside)
    sent = crossing(kind, size, nodes) / (in_node if kind in _BY_NODE else 1)
    between = sent / (NETWORK_SHARE * network.bandwidth.get(card.name, card.nic_bandwidth))
    latency = network.latency_s + HOP_S * (math.log2(nodes) - 1)
    pipeline = max(network.pipeline * math.sqrt(between), card.link_pipeline * math.sqrt(inside))
    return latency + max(between, inside) + pipeline


def crossing(kind: str, size: float, members: int) -> float:
    """Return the bytes that each member sends, with the correction factors of nccl-tests."""
    if kind in _WHOLE:
        return size if members > 1 else 0.0
    return (2.0 if kind == "all-reduce" else 1.0) * (members - 1) / members * size
