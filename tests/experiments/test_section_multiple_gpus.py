"""Section 8.4: its LeNet is the package's, all ways agree, and a whole pass keeps what it promises.

No test asks how long anything takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxperf.chapter import cells
from jaxperf.measure.compile_log import nothing_compiles
from jaxperf.models import lenet, lenet_params

SCRIPT = Path(__file__).parents[2] / "experiments" / "multiple_gpus.py"


@pytest.fixture(scope="module")
def section() -> ModuleType:
    return cells.load(SCRIPT, "--smoke")


def verdicts(section: ModuleType) -> dict[str, str]:
    return {claim.statement: claim.verdict for claim in section.s.result().claims}


def test_lenet_is_the_packages_whose_logits_equal_mxnets(section: ModuleType) -> None:
    params = lenet_params(jax.random.key(1))
    X = jax.random.uniform(jax.random.key(2), (4, 28, 28, 1))
    chex.assert_trees_all_close(section.lenet(params, X), lenet(X, params), rtol=1e-5, atol=1e-7)
    chex.assert_trees_all_equal_shapes(section.params, params)
    weights = section.params[4]
    assert float(weights.std()) == pytest.approx(0.01, rel=0.02) and not section.params[5].any()


def test_the_loss_is_a_sum_so_that_gradients_of_shares_add_up(section: ModuleType) -> None:
    X, y = section.data.train_images[:6], section.data.train_labels[:6]
    parts = [section.gradient(section.params, X[i : i + 2], y[i : i + 2]) for i in (0, 2, 4)]
    total = jax.tree.map(lambda *grads: sum(grads), *parts)
    chex.assert_trees_all_close(total, section.gradient(section.params, X, y), rtol=1e-4, atol=1e-6)


def test_the_books_allreduce(section: ModuleType) -> None:
    ones = [jax.device_put(jnp.ones((1, 2)) * (i + 1), d) for i, d in enumerate(section.devices)]
    for total, device in zip(section.allreduce(ones), section.devices):
        assert total.device == device and total.tolist() == [[3.0, 3.0]]


def test_the_books_six_rows_are_halved_and_five_are_refused(section: ModuleType) -> None:
    whole = jnp.arange(24).reshape(6, 4)
    shares = section.split_and_load(whole, section.devices)
    assert [share.device for share in shares] == section.devices
    chex.assert_trees_all_equal(jnp.concatenate(jax.device_get(shares)), whole)
    with pytest.raises(AssertionError, match="5 rows, 2 devices"):
        section.split_and_load(whole[:5], section.devices)
    with pytest.raises(AssertionError, match="6 images, 5 labels"):
        section.split_batch(whole, np.arange(5), section.devices)


def test_get_params_copies_and_leaves_the_original(section: ModuleType) -> None:
    there = section.get_params(section.params, section.devices[1])
    assert {p.device for p in there} == {section.devices[1]}
    assert {p.device for p in section.params} == {section.devices[0]}


def test_every_claim_that_needs_no_clock_holds(section: ModuleType) -> None:
    by_statement = verdicts(section)
    assert by_statement["All five ways compute what one device computes"] == "holds"
    assert by_statement["A step sums as many bytes as the parameters occupy"] == "holds"


def test_a_second_psum_multiplies_by_the_number_of_devices(section: ModuleType) -> None:
    w, x = jnp.ones(3), jnp.arange(12.0).reshape(4, 3)
    twice = section.on_mesh(lambda w, x: lax.psum(section.slope(w, x), "data"))(w, x)
    chex.assert_trees_all_close(twice, 2 * section.slope(w, x))
    right = section.on_mesh(lambda w, x: lax.psum(section.slope(section.varying(w), x), "data"))(w, x)
    chex.assert_trees_all_close(right, section.slope(w, x))


def test_a_scan_over_batches_is_one_program_and_the_same_updates_as_a_step_each(section: ModuleType) -> None:
    """Nothing is copied from the host while it runs; without shuffling it would be `step` in a loop."""
    args = jax.device_put(
        (section.params, section.data.train_images, section.data.train_labels), section.card
    )
    args, key = jax.tree.map(jnp.copy, args), jax.random.key(1)  # donated
    order = jax.random.permutation(key, len(args[2]))[:32].reshape(2, 16)
    expected = section.params
    for rows in order:
        expected = section.step(expected, args[1][rows], args[2][rows])
    lowered = section.train_epoch.lower(*args, key, steps=2)
    program = lowered.compile()
    assert lowered.as_text().count("func.func public") == 1 and "infeed" not in program.as_text()
    with nothing_compiles("an epoch"), jax.transfer_guard("disallow_explicit"):
        new = jax.block_until_ready(program(*args, key))
    chex.assert_trees_all_close(new, expected, rtol=1e-5, atol=1e-6)


def test_both_trainings_of_whole_epochs_agree(
    section: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    by_hand = section.train(num_gpus=2, batch_size=16, lr=0.2)
    assert by_hand == section.train_with_pmap(num_gpus=2, batch_size=16, lr=0.2)
    assert capsys.readouterr().out.count("epoch 1, time ") == 2


@pytest.mark.thorough
def test_beside_a_single_card_several_devices_are_parts_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The card is pretended: JAX lists a single default device."""
    listed = jax.devices
    monkeypatch.setattr(jax, "devices", lambda kind=None: listed(kind)[: None if kind else 1])
    try:
        page = cells.load(SCRIPT, "--smoke")
    finally:
        jax.config.update("jax_default_device", None)
    assert "only one cpu" in capsys.readouterr().out and page.devices == jax.devices("cpu")[:2]
    assert (
        page.card == jax.devices()[0]
        and verdicts(page)["All five ways compute what one device computes"] == "holds"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("count", [4, 8])
def test_it_runs_as_a_script_on_more_devices(tmp_path: Path, count: int) -> None:
    path = tmp_path / "result.json"
    command = [sys.executable, SCRIPT, "--smoke", "--answers", "--devices", str(count), "--json", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(path.read_text())
    assert result["config"]["devices"] == count and result["smoke"]
    assert not result["failed"]
    by_statement = {claim["statement"]: claim["verdict"] for claim in result["claims"]}
    assert by_statement["All five ways compute what one device computes"] == "holds"
