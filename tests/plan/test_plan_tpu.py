import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxperf import hlo
from jaxperf.errors import JaxperfError
from jaxperf.plan import deviceless
from jaxperf.plan.arguments import Placed
from jaxperf.plan.cards import CARDS
from jaxperf.plan.collectives import collectives
from jaxperf.plan.planning import plan_of

V5E = CARDS["v5e"]
VERSIONS = ("jax_0_10", "jax_0_12")
W = 4096 * 4096  # elements of one of the two parameters of the recorded step


@pytest.mark.parametrize(("name", "count", "message"), [
    ("v5e", 3, "Google lists no slice of v5e with 3 chips; take 1 or 4"),
    ("v5e", 512, "with 512 chips; take 256"), ("v6e", 257, "take 256"), ("v5p", 8961, "take 8960"),
    ("v5p", 0, "take 1"),
])  # fmt: skip
def test_slices_that_do_not_exist(name, count, message):
    with pytest.raises(JaxperfError, match=message):
        CARDS[name].slice_of(count)


@pytest.mark.parametrize("version", VERSIONS)
def test_collectives(version, recorded):
    """Both parameters are gathered, one of them in parts, beside three kernels; it counts once."""
    program = recorded(f"tpu_gathered_{version}")
    large = [c for c in collectives(program, {"data": 8}).values() if c.bytes > 2**20]
    sent = [(c.kind, c.bytes, c.group_size) for c in large]
    assert sent == [("all-gather", 2 * W, 8)] * 2 + [("reduce-scatter", 4 * W, 8)]
    assert large[-1].source == "small_steps.py:58"


def test_the_report_has_no_times(recorded):
    mesh = Mesh(np.array(jax.devices("cpu")[:8]), ("data",))
    compiled = deviceless.Program(recorded("tpu_gathered_jax_0_12"), hlo.Costs(0, 0, 0, 0, 20 * 10**9, 0))
    step_plan = plan_of(V5E, [Placed(None, (), mesh, 64, {1: 0}, ("data",), made=True)], [compiled])
    (size,) = step_plan.sizes
    assert size.time is None and size.step_s is None and not size.fits
    assert set(size.advice) == {"does not fit"}
    text = str(step_plan)
    assert "Compiled step" in text and "slices 2x4" in text and "all-gather" in text
    assert "Predicted" not in text and "efficiency" not in text and "waits" not in text
