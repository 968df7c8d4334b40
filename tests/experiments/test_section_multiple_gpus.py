"""Section 8.4: its LeNet and all its ways are MXNet's, and a whole pass keeps what it promises.

No test asks how long anything takes.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mxnet_fixtures import LENET, LENET_SHAPES, batch, digest_error, load, weights

from jaxperf.measure import timeline
from jaxperf.measure.compile_log import nothing_compiles
from tests.experiments.plants import fails, rounds_of, verdict


def test_fresh_weights_are_the_books(section):
    assert [p.shape for p in section.params] == list(LENET_SHAPES.values())
    assert float(section.params[4].std()) == pytest.approx(0.01, rel=0.02) and not section.params[5].any()


def mxnets_lenet():
    """MXNet's answers, their seed, and the weights that they begin with, in float64."""
    answers = load("lenet")
    drawn = weights(LENET_SHAPES, "sound", int(answers["seed"]))
    return answers, int(answers["seed"]), [jnp.asarray(w, "float64") for w in drawn.values()]


def mxnets_batch(seed, step):
    X, y = batch(seed, step, LENET.batch)
    return 255 * X.transpose(0, 2, 3, 1).astype("float64"), y


@pytest.mark.usefixtures("optimized")
def test_logits_and_gradients_equal_mxnets(section):
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        answers, seed, params = mxnets_lenet()
        X, y = mxnets_batch(seed, 0)
        logits, grads = section.lenet(params, X / 255), section.gradient(params, X, y)
    desired = answers["sound/float64/logits"]
    np.testing.assert_allclose(logits, desired, rtol=0, atol=1e-10 * np.abs(desired).max())
    assert digest_error(answers, "sound/float64/grad", [np.asarray(g) for g in grads]).max() < 1e-9


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("way", ["one device", "by hand", "pmap", "shard_map", "explicit", "automatic"])
def test_eight_steps_each_way_equal_mxnets_on_as_many_contexts(section, way):
    contexts = 1 if way == "one device" else len(section.devices)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        answers, seed, start = mxnets_lenet()
        by_hand = [section.get_params(start, device) for device in section.devices]
        params = by_hand if way == "by hand" else start
        for step in range(LENET.steps):
            params = section.ways[way](params, *mxnets_batch(seed, step), LENET.lr)
        new = params[-1] if way == "by hand" else params
        update = [np.asarray(b) - np.asarray(a) for a, b in zip(start, new, strict=True)]
    assert update[0].dtype == np.float64
    assert digest_error(answers, f"sound/float64/{contexts}ctx/update", update).max() < 1e-9


def test_the_books_six_rows_are_halved_and_five_are_refused(section):
    whole = jnp.arange(24).reshape(6, 4)
    shares = section.split_and_load(whole, section.devices)
    assert [share.device for share in shares] == section.devices
    chex.assert_trees_all_equal(jnp.concatenate(jax.device_get(shares)), whole)
    with pytest.raises(AssertionError, match="5 rows, 2 devices"):
        section.split_and_load(whole[:5], section.devices)
    with pytest.raises(AssertionError, match="6 images, 5 labels"):
        section.split_batch(whole, np.arange(5), section.devices)


def test_every_claim_that_needs_no_clock_holds(section):
    by_statement = {claim.statement: claim.verdict for claim in section.s.result().claims}
    assert by_statement["All five ways compute what one device computes"] == "holds"
    assert by_statement["A step sums as many bytes as the parameters occupy"] == "holds"


def test_a_second_psum_multiplies_by_the_number_of_devices(section):
    slope = section.slope(section.w, jnp.arange(12.0).reshape(4, 3))
    chex.assert_trees_all_close(section.twice(*section.split), 2 * slope)
    chex.assert_trees_all_close(section.once(*section.split), slope)


def test_a_scan_over_batches_is_one_program_and_the_same_updates_as_a_step_each(section):
    """Nothing is copied from the host while it runs; without shuffling it would be `step` in a loop."""
    data, key = section.data, jax.random.key(1)
    args = jax.device_put((section.params, data.train_images, data.train_labels), section.devices[0])
    args = jax.tree.map(jnp.copy, args)  # donated
    order = jax.random.permutation(key, len(args[2]))[:32].reshape(2, 16)
    expected = section.params
    for rows in order:
        expected = section.step(expected, args[1][rows], args[2][rows], 0.2)
    lowered = section.train_epoch.lower(*args, key, 0.2, batch_size=16, steps=2)
    program = lowered.compile()
    assert lowered.as_text().count("func.func public") == 1 and "infeed" not in program.as_text()
    lr = jax.device_put(0.2, section.devices[0])
    with nothing_compiles("an epoch"), jax.transfer_guard("disallow_explicit"):
        new = jax.block_until_ready(program(*args, key, lr))
    chex.assert_trees_all_close(new, expected, rtol=1e-5, atol=1e-6)


def test_both_trainings_of_whole_epochs_agree(section, capsys):
    by_hand = section.train(num_gpus=2, batch_size=16, lr=0.2, epochs=1)
    assert by_hand == section.train_with_pmap(num_gpus=2, batch_size=16, lr=0.2, epochs=1)
    assert capsys.readouterr().out.count("epoch 1, time ") == 2


def test_each_claim_fails_where_it_should(section):
    def in_turn(X, y, device_params, devices):
        Xs, ys = section.split_batch(X, y, devices)
        for params, X, y in zip(device_params, Xs, ys):
            jax.block_until_ready(section.gradient(params, X, y))

    run = timeline.record(in_turn, section.X, section.y, section.device_params, section.devices)
    serial = timeline.overlap(run, *map(timeline.lane_of, section.devices))
    # takes several cores
    assert fails(section, "A loop over devices looks serial", everywhere=True, overlap=serial)
    assert fails(section, "A step sums as many bytes", summed_bytes=section.summed_bytes // 2)
    (_, X), (_, y) = section.split_batch(section.X, section.y, section.devices)
    params = section.device_params[1]
    own_share_only = section.sgd(params, section.gradient(params, X, y), 0.2, 256)
    assert fails(section, "All five ways compute", after={**section.after, "by hand": own_share_only})


def test_accuracies_are_compared_only_where_something_was_learned(section):
    learned, worse, guessed = [[0.1, 0.76], [0.1, 0.75]], [[0.1, 0.66], [0.1, 0.7]], [[0.1, 0.1], [0.1, 0.1]]
    statement = "LeNet becomes as accurate on several devices as on one"
    assert verdict(section, statement, one=learned, several=learned) == "holds"
    assert fails(section, statement, one=learned, several=worse)
    assert verdict(section, statement, one=guessed, several=guessed) == "not measurable here"
    statement = "At the old rate, twice the batch learns less"
    rows = [[16, "0.2", "", 0.7], [32, "0.2", "", 0.5], [32, "0.3", "", 0.7], [32, "0.4", "", 0.6]]
    assert verdict(section, statement, rows=rows) == "holds"
    rows[1][-1] = 0.7
    assert fails(section, statement, rows=rows)
    assert verdict(section, statement, rows=[[*row[:3], 0.1] for row in rows]) == "not measurable here"


def test_times_that_contradict_a_claim_make_it_fail(section):
    alike = {way: rounds_of(way, 1.0) for way in section.ways}
    slow = {way: {**alike, way: rounds_of(way, 2.0)} for way in section.ways}
    assert verdict(section, "The compiled ways are equally fast", times=alike) == "holds"
    assert fails(section, "The compiled ways are equally fast", times=slow["automatic"])
    assert verdict(section, "Sums written by hand", times=slow["by hand"]) == "holds"
    assert fails(section, "Sums written by hand", times=slow["explicit"])
    assert verdict(section, "A second GPU", times=slow["by hand"]) == "not measurable here"
    steps = {"batch 128": rounds_of("", 1.0), "batch 256": rounds_of("", 3.0)}
    assert fails(section, "A device with half of the batch", step_times=steps)
