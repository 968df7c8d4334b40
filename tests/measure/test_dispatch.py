import jax
import jax.numpy as jnp
import numpy as np
from late import Late

from jaxperf.measure.timing import pending, probe


def test_pending_counts_arrays_that_are_not_there():
    quick = jax.block_until_ready(jnp.ones(3))
    program = Late()
    late = program.array()
    try:
        assert pending([late, quick, {"a": late}]) == 2
        assert pending((quick, np.ones(3), 1.0, None)) == 0
    finally:
        program.gate.set()
    late.block_until_ready()
    assert pending([late, quick]) == 0


def test_numpy_is_synchronous():
    probed = probe(np.dot, np.ones((50, 50)), np.ones((50, 50)), calls=4)
    assert probed.ready == (True,) * 4
    assert not probed.asynchronous
    assert len(probed.queued_s) == len(probed.finished_s) == 4
    assert all(0 < queued <= done for queued, done in zip(probed.queued_s, probed.finished_s))
    assert probed.queued_share.rounds == 4 and 0 < probed.queued_share.median <= 1


def test_a_program_has_finished_if_one_of_its_results_is_there():
    both = jax.jit(lambda x: (jnp.sin(x), jnp.cos(x)))
    assert len(probe(lambda: both(jnp.ones(3))[0]).ready) == 5
