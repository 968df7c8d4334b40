"""Cases of a parametrized test of which `make test` runs some, and CI all."""

import pytest


def cases(everything, quick):
    """Return all cases for `parametrize`, marked `thorough` where `quick(*case)` is false."""
    return [
        pytest.param(*case, marks=() if quick(*case) else pytest.mark.thorough, id="-".join(map(str, case)))
        for case in everything
    ]
