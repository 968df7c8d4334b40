import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P

from jaxperf.chapter import cells
from tests.experiments.plants import fails, verdict

P100 = "Bytes and bandwidth predict the published throughput of eight P100"


def test_every_claim_has_its_verdict(section):
    claims = {claim.statement: claim for claim in section.s.result().claims}
    assert len(claims) == 5 and claims.pop(P100).verdict == "does not hold"
    (toy,) = (c for c in claims.values() if c.verdict != "holds")
    assert toy.verdict == "not measurable here" and toy.observed == "the sizes are those of a toy"


def test_each_claim_fails_where_it_should(section, monkeypatch):
    heavy = section.epoch(section.resnet_step + 10 * section.resnet_sum, 512)
    assert fails(section, "The book's ResNet-18 on two GPUs fits", resnet=heavy)
    no_calls = section.epoch(section.calls_of(2, 0.0, section.lenet_step / 2, section.lenet_sum), 256)
    assert fails(section, "Calls are consistent", lenet=no_calls)
    assert fails(section, "Under jit, 34", by_jit=[*section.by_jit, 8])
    good = {name: row[2] * 1.1 for name, row in section.PUBLISHED.items()}
    assert verdict(section, P100, predicted=good) == "holds"
    monkeypatch.setattr(section.s, "smoke", False)
    for counts, expected in (
        ((1000, 260, 80, 70), "holds"),
        ((1000, 250, 62, 16), "does not hold"),
        ((1000, 900, 800, 700), "does not hold"),
    ):
        steps = {"rate by the linear rule": [(n, n, n) for n in counts]}
        assert verdict(section, "The linear rule saves", steps=steps) == expected


def test_the_books_epochs_by_hand(section):
    # ResNet-18: 234 steps of 13.0 / 234 s; two GPUs make 117 steps, each with 44.7 MB at 10 GB/s = 4.47 ms
    assert section.resnet == pytest.approx(117 * (13.0 / 234 + 4.47e-3), rel=1e-6)
    assert section.resnet == pytest.approx(7.02, abs=0.01)
    # LeNet: 234 steps of 1.4 / 234 s; half of it and 0.0516 ms by bytes, twice its calls otherwise
    assert section.lenet_bytes == pytest.approx(0.7 + 234 * 0.0516e-3, rel=1e-6)
    assert section.lenet == pytest.approx(2.8)


def test_a_predicted_step_by_hand(section):
    # 256 images: 1.9 + 1.77152 ms. Ring of 4: 6 x 5 us + 1.5 x 44.684 MB / 50 GB/s = 1.37052 ms
    size = 4 * 11_171_018
    seconds, efficiency = section.predict(4, 256, size, weak=True)
    assert seconds == pytest.approx(3.67152e-3 + 30e-6 + 1.5 * size / 50e9)
    assert efficiency == pytest.approx(3.67152e-3 / seconds)
    seconds, efficiency = section.predict(4, 256, size, weak=False)
    assert seconds == pytest.approx(1.9e-3 + 64 * 6.92e-6 + 30e-6 + 1.5 * size / 50e9)
    assert efficiency == pytest.approx(3.67152e-3 / seconds / 4)
    assert section.predict(1, 256, size, weak=True) == (pytest.approx(3.67152e-3), pytest.approx(1.0))


def test_both_steps_update_alike_where_shares_have_the_same_statistics(section):
    def draw(key, shape):
        return 0.2 * np.asarray(jax.random.normal(key, shape.shape))

    leaves, tree = jax.tree.flatten(section.params)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    params = jax.tree.unflatten(tree, [draw(key, leaf) for key, leaf in zip(keys, leaves)])
    with jax.set_mesh(section.mesh):
        params = jax.device_put(params, P())
    k = len(section.devices)
    share = jax.random.uniform(jax.random.key(1), (8, 28, 28, 1))
    with jax.set_mesh(section.mesh):
        X, y = jax.device_put((jnp.tile(share, (k, 1, 1, 1)), jnp.tile(jnp.arange(8), k)), P("data"))
    new, other = jax.jit(section.step_by_jit)(params, X, y), jax.jit(section.step_by_shard_map)(params, X, y)
    moved = max(float(abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (new, params))))
    apart = max(float(abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (new, other))))
    assert apart < 1e-2 * moved


def test_the_model_of_clusters_is_that_of_the_collectives(section, script):
    collectives = cells.load(script.with_name("collectives.py"), "--smoke")
    for count in (2, 8, 64, 1024):
        for size in (1e3, 44.7e6, 14e9):
            assert section.all_reduce(size, count) == pytest.approx(collectives.gpu_seconds(size, count))
