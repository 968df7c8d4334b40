"""Cases of a parametrized test of which `make test` runs some, and CI all."""

import pytest


def cases(everything, quick):
    """Return all cases for `parametrize`, marked `thorough` where `quick(*case)` is false."""
    return [
        pytest.param(*case, marks=() if quick(*case) else pytest.mark.thorough, id="-".join(map(_name, case)))
        for case in everything
    ]


def _name(value):
    return getattr(value, "__name__", str(value))
