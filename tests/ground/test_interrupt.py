import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import interrupt
from interrupt import WAYS, Config


@pytest.mark.thorough
@pytest.mark.parametrize("latest_s", [1.0, 4.0])
def test_a_run_that_is_stopped_at_a_random_moment_leaves_nothing_behind(latest_s):
    interrupt.main(Config(times=2 * len(WAYS), latest_s=latest_s))
