import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxperf
from jaxperf.watch.observe.transfers import LARGE


@pytest.mark.parametrize(("module", "name"), [(jnp, "array"), (jnp, "asarray"), (jax, "device_put")])
def test_bytes_that_were_put_there_before_are_told_from_new_ones(module, name, watched):
    table = np.zeros(LARGE // 4, np.float32)

    def program():
        for value in (1, 1, 2, 2, 3):
            table[:] = value
            getattr(module, name)(table)

    puts = watched(program).log.puts
    assert [p.again for p in puts] == [False, True, False, True, False]
    assert {(p.at.file, p.nbytes) for p in puts} == {(__file__, LARGE)}


def test_small_arrays_arrays_of_jax_and_other_threads_are_left_alone():
    large = np.zeros(LARGE, np.float32)
    with jaxperf.watch(show=False, profile=False) as outcome:
        jnp.array(np.ones(3))
        jnp.array(jnp.array([1.0]))
        jnp.array(object=2.0)
        thread = threading.Thread(target=lambda: jnp.array(large))
        thread.start()
        thread.join()
    assert outcome.log.puts == []


def test_a_line_that_puts_several_arrays_in_turns_remembers_each(watched):
    x, y, *batches = (np.full(LARGE // 4, value, np.float32) for value in range(9))
    in_order = [x, y, x, y, *batches, x]  # at last, x was there so long ago that it may be an epoch
    puts = watched(lambda: [jnp.asarray(array) for array in in_order]).log.puts
    assert [p.again for p in puts] == [False, False, True, True] + [False] * 8


def test_lists_of_many_numbers_are_counted_and_those_of_arrays_are_not(watched):
    values = [[[1.0, 2.0]] * 60, (1, 2, 3), [np.ones(200)], [], [jnp.ones(2)] * 3]
    puts = watched(lambda: [jnp.array(value) for value in values]).log.puts
    assert [(p.numbers, p.nbytes, p.again) for p in puts] == [(120, 0, False)]


def test_lists_of_many_arrays_of_jax_are_counted_where_they_are_joined(watched):
    row = [jnp.ones(2)] * 120
    puts = watched(lambda: (jnp.asarray(row), jnp.array([row, row]), jax.device_put(row))).log.puts
    assert [(p.arrays, p.numbers, p.nbytes) for p in puts] == [(120, 0, 0), (240, 0, 0)]


def test_arrays_of_jax_that_go_to_another_device_are_noted_and_those_that_stay_are_not(watched):
    if len(jax.devices()) < 2:
        pytest.skip("there is one device")
    here, there = jax.devices()[:2]
    weights = [jax.device_put(jnp.ones(LARGE // 8), here) for _ in range(2)]
    other = jax.device_put(jnp.zeros(LARGE // 4), here)
    with jaxperf.watch(show=False, profile=False) as outcome:
        jax.device_put(weights, there)
        jax.device_put({"w": weights}, here)  # it is there
        jax.device_put({"w": weights}, there)
    assert [(p.moved, p.again, p.nbytes) for p in outcome.log.puts] == [(True, False, LARGE)] * 2
    trees = (weights, weights, [other], weights)
    puts = watched(lambda: [jax.device_put(tree, there) for tree in trees]).log.puts
    assert [p.again for p in puts] == [False, True, False, True]


@pytest.mark.parametrize("module", [np, jnp])
def test_the_same_array_on_another_device_is_no_second_copy(module, watched):
    devices = jax.devices()[1:]
    array = module.ones(LARGE // 4, np.float32)
    puts = watched(lambda: [jax.device_put(array, d) for d in devices * 2]).log.puts
    assert [p.again for p in puts] == [False] * len(devices) + [True] * len(devices)
