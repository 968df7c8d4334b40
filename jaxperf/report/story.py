"""The one traversal: a result's blocks in order, as the items that every renderer shows.

Terminal, page, Markdown and notebook each define how one item looks. This module decides what is shown, in
which order, and in which words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxperf.report.draw import Picture
from jaxperf.report.figures import pictures
from jaxperf.report.tables import Rows, rows_of
from jaxperf.result import (
    Block,
    Claim,
    Code,
    Dots,
    Fact,
    Failed,
    Grid,
    Habit,
    Heading,
    Lines,
    Note,
    Output,
    Peers,
    Result,
    Table,
    Text,
    Timelines,
)


@dataclass(frozen=True)
class Facts:
    """Facts that follow each other."""

    facts: tuple[Fact, ...]


Item = Heading | Text | Habit | Code | Output | Rows | Picture | Claim | Facts | Note | Failed


def walk(result: Result, *, peers: Sequence[Result] = (), brief: bool = False) -> Iterator[Item]:
    """Every item of a result in the order of its blocks.

    Args:
      result: what to show.
      peers: results that hold other systems' measurements of the workloads that it names.
      brief: tables keep only the important rows.
    """
    facts: list[Fact] = []
    for block in result.blocks:
        if isinstance(block, Fact):
            facts.append(block)
            continue
        if facts:
            yield Facts(tuple(facts))
            facts = []
        try:
            yield from items(block, result, peers=peers, brief=brief)
        except (ArithmeticError, ValueError) as e:  # a file may hold numbers that break every statistic
            yield Note(f"{getattr(block, 'title', block.kind)} is left out, its values cannot be shown: {e}")
    if facts:
        yield Facts(tuple(facts))


def items(
    block: Block, result: Result, *, peers: Sequence[Result] = (), brief: bool = False
) -> Iterator[Item]:
    """What one block shows; `result` says where it comes from."""
    match block:
        case Fact():
            yield Facts((block,))
        case Table():
            yield rows_of(block, brief=brief)
            yield from pictures(block, systems=_systems(result))
        case Grid():
            yield rows_of(block)
        case Lines() | Dots() | Timelines():
            yield from pictures(block, systems=_systems(result))
        case Peers():
            yield from _of_peers(block.workload, result, peers)
        case _:
            yield block


def _systems(result: Result) -> list[str]:
    """The systems that a result names, in the order in which they first appear."""
    found = [m.system for m in result.measurements] + [c.system for c in result.curves]
    return list(dict.fromkeys(filter(None, found)))


def _of_peers(workload: str, result: Result, peers: Sequence[Result]) -> Iterator[Item]:
    """Every table and figure of other results on this workload, drawn; nothing if there is none."""
    for peer in peers:
        if peer is result:
            continue
        for table in peer.of(Table):
            if any(m.workload == workload for m in table.rows):
                yield from items(table, peer)
        for lines in peer.of(Lines):
            if any(c.workload == workload for c in lines.curves):
                yield from items(lines, peer)
