"""Whether two systems computed the same result: the condition for timing them against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Answers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Verdict:
    """What a comparison found; `error` is the largest difference, relative to the base's largest value."""

    error: float
    trouble: str = ""

    @property
    def agrees(self) -> bool:
        """Return whether nothing is wrong."""
        return not self.trouble


def read_answers(path: Path) -> dict[str, np.ndarray]:
    """Return a worker's answers.

    Raises:
      ValueError: the file is not what it should be; one line says why.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as e:  # NumPy has no single error for damaged files
        raise ValueError(f"its answers cannot be read: {type(e).__name__}") from None


def compare_answers(base: Answers, other: Answers, *, rtol: float) -> Verdict:
    """Return whether `other` is `base` within `rtol` of the largest absolute value of each array.

    Not element by element: a logit near zero has no relative precision of its own.
    """
    if set(base) != set(other):
        return Verdict(np.inf, f"it answers {sorted(other)} where JAX answers {sorted(base)}")
    errors = [0.0]
    for name, expected in base.items():
        actual = other[name]
        if actual.shape != expected.shape:
            return Verdict(np.inf, f"its {name} has shape {actual.shape} where JAX's has {expected.shape}")
        if not (np.isfinite(expected).all() and np.isfinite(actual).all()):
            return Verdict(np.inf, f"its {name} or JAX's is not finite")
        difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0)
        errors.append(float(difference / max(np.abs(expected).max(initial=0), 1e-30)))
    error = max(errors)
    return Verdict(
        error, "" if error <= rtol else f"it differs from JAX by {error:.2g}, allowed is {rtol:.2g}"
    )
