"""The peers there are: what each is pinned to and which Pythons it runs on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from jaxperf.errors import JaxperfError

Version = tuple[int, int]


@dataclass(frozen=True)
class Peer:
    """A framework that lives in an environment of its own.

    Attributes:
      name: also of the module that is imported.
      requires: what is installed, pinned; several lists are tried in order until one can be had.
      pythons: the Pythons it runs on, best first.
      running_first: whether the Python that runs jaxperf comes before all others, if it is among them.
    """

    name: str
    requires: tuple[tuple[str, ...], ...]
    pythons: tuple[Version, ...]
    running_first: bool = True

    @property
    def span(self) -> str:
        """ "Python 3.8 to 3.11"."""
        low, high = min(self.pythons), max(self.pythons)
        return f"Python {low[0]}.{low[1]} to {high[0]}.{high[1]}"


PEERS = {
    "mxnet": Peer(
        "mxnet",
        requires=(("mxnet==1.9.1", "numpy==1.23.5"),),
        pythons=((3, 11), (3, 10), (3, 9), (3, 8)),
    ),
    # The build without CUDA is a tenth of the other's size; where it isn't offered by name, plain it is.
    "torch": Peer(
        "torch",
        requires=(("torch==2.13.0+cpu", "numpy==2.2.6"), ("torch==2.13.0", "numpy==2.2.6")),
        pythons=((3, 11), (3, 12), (3, 13), (3, 10)),
        running_first=False,
    ),
}


def chosen(words: Iterable[str]) -> tuple[Peer, ...]:
    """The peers that `words` name, each once; a word may hold several, parted by commas.

    Raises:
      JaxperfError: a name that no peer has.
    """
    names = [name.strip() for word in words for name in word.split(",")]
    for name in filter(None, names):
        if name not in PEERS:
            near = difflib.get_close_matches(name, PEERS, n=1, cutoff=0.0)[0]
            raise JaxperfError(f"no peer {name!r}; did you mean {near!r}? There are {', '.join(PEERS)}")
    return tuple(PEERS[name] for name in dict.fromkeys(filter(None, names)))
