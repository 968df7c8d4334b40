"""Characters at random, as examples/rnn/dataset.py of Haiku returns them."""

from __future__ import annotations

from typing import Any

import numpy as np

Batch = dict
NUM_CHARS = 128


def load(split: Any, *, batch_size: Any, sequence_length: Any) -> Any:
    """Yield batches of int32 arrays "input" and "target" of shape [sequence_length, batch_size]."""
    draw = np.random.default_rng(0)
    while True:
        x = draw.integers(32, 127, (sequence_length + 1, batch_size)).astype(np.int32)
        yield {"input": x[:-1], "target": x[1:]}


def decode(x: Any) -> Any:
    """Return the text of code points."""
    return "".join(chr(code) for code in x)
