"""Further processes for DistributedDataParallel: this worker is rank 0, the others are workers it starts.

They use the host's protocol (`wire`): rank 0 passes on its requests, does its own share meanwhile and then
reads the answers. The processes communicate through Gloo over loopback.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

PATIENCE = datetime.timedelta(seconds=60)


class Group:
    """This process among `world`, which train on each batch together, each on its own share.

    A world of one process has no process group, and the whole batch is its share.
    """

    def __init__(self, rank: int, world: int, others: list[Any]) -> None:
        self.rank, self.world, self.others = rank, world, others

    def wrap(self, net: Any) -> Any:
        """Return the network whose gradients are averaged over all processes."""
        from torch.nn.parallel import DistributedDataParallel

        return net if self.world == 1 else DistributedDataParallel(net)

    def share(self, a: np.ndarray) -> np.ndarray:
        """Return this process's part of a batch, in `split_and_load`'s order."""
        m = len(a) // self.world
        return a[self.rank * m : (self.rank + 1) * m]

    def mean(self, value: Any) -> float:
        """Return a scalar's mean over all processes."""
        import torch.distributed as dist

        total = value.clone()
        if self.world > 1:
            dist.all_reduce(total)
        return float(total) / self.world

    def barrier(self) -> None:
        """Wait for all processes."""
        import torch.distributed as dist

        if self.world > 1:
            dist.barrier()

    @contextmanager
    def doing(self, **request: Any) -> Iterator[list[dict[str, float]]]:
        """Have the other processes do what is requested while this one runs the block, and gather answers.

        If anything fails, they are out of step forever, so this worker ends: the host starts another.
        """
        try:
            for other in self.others:
                other.stdin.write(json.dumps({"id": 1, "key": "it", **request}) + "\n")
                other.stdin.flush()
            yield (answers := list[dict[str, float]]())
            answers += _hear(self.others)
        except Exception as e:
            raise SystemExit(f"{type(e).__name__}: {e}") from e

    def turn(self, rank_turn: Callable[[int], dict[str, float]], calls: int) -> dict[str, float]:
        """Take one turn of all processes, as rank 0 sees it; "cores" are those of the others."""
        with self.doing(op="turn", calls=calls, lead=0) as answers:
            value = rank_turn(calls)
        return {**value, "cores": sum(answer["cores"] for answer in answers)}


@contextmanager
def together(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Iterator[Group]:
    """Have all ranks build what `settings` describes inside the block; rank 0 first starts the others."""
    rank, world, others = start.get("rank", 0), settings["devices"], []
    if rank == 0:
        others = _start_others(world, json.dumps(start), settings["folder"])
    group = Group(rank, world, others)
    answers = str(Path(settings["folder"]) / "others.npz")
    with group.doing(op="prepare", settings=settings, configuration=configuration, answers=answers):
        yield group


@functools.cache
def _start_others(world: int, start: str, folder: str) -> list[Any]:
    store = str(Path(folder) / f"gloo-{os.getpid()}")
    others = []
    for rank in range(1, world):
        extra = {"rank": rank, "world": world, "store": store}
        program = [sys.executable, str(Path(__file__).with_name("__main__.py")), "torch"]
        command = [*program, json.dumps({**json.loads(start), **extra})]
        others.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    join(0, world, store)
    _hear(others)  # their greeting
    return others


def join(rank: int, world: int, store: str) -> None:
    """Enter the process group; waits for all the others, for a minute at most."""
    import torch.distributed as dist

    url = Path(store).as_uri()
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=world, timeout=PATIENCE)


def _hear(others: list[Any]) -> list[dict[str, float]]:
    """Read every other process's answer; an error in one becomes ours."""
    values: list[Any] = []
    for rank, other in enumerate(others, 1):
        line = other.stdout.readline()
        answer = json.loads(line) if line else {"ok": False, "error": "ended"}
        if not answer["ok"]:
            raise RuntimeError(f"rank {rank}: {answer['error']}")
        values.append(answer["value"])
    return values
