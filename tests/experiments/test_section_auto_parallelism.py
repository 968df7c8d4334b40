import jax
import jax.numpy as jnp
import numpy as np

from tests.experiments.plants import exactly, verdict


def test_run_computes_every_product_on_the_device_of_its_operand(page):
    x = np.arange(9.0, dtype=np.float32).reshape(3, 3)
    for device in (page.cpu, page.other):
        ys = page.run(jax.device_put(x, device), 4)
        assert len(ys) == 4
        for y in ys:
            assert y.device == device
            np.testing.assert_array_equal(y, x @ x)


def test_prefetch_yields_every_batch_in_order_and_is_one_ahead(page):
    loaded = []

    def load(i):
        loaded.append(i)
        return np.full(3, i, np.float32)

    for i, batch in enumerate(page.prefetch(load, 4)):
        np.testing.assert_array_equal(batch, np.full(3, i))
        assert len(loaded) <= i + 2
    assert loaded == [0, 1, 2, 3]


def test_equal_products_become_one_and_different_ones_stay(page):
    assert (page.equal, page.different) == (1, page.s.products)
    batched = jax.vmap(lambda x: jnp.dot(x, x))
    assert page.dots(batched, jnp.stack(page.operands)) == 1


def test_graphs_equal_numpy_in_every_bit_waited_for_or_not(page):
    assert page.correct == 5
    graph, start = page.random_graph(7), page.leaves(7)
    expected = page.by_numpy(graph, start)
    for wait in (False, True):
        values = page.run_graph(graph, start, (page.cpu, page.other), wait=wait)
        assert len(values) == len(expected) == 4 + page.s.nodes
        for a, b in zip(values, expected):
            np.testing.assert_array_equal(a, b)


def test_a_control_that_gains_as_much_leaves_the_claim_about_cores_open(page):
    statement = "A product is nearly as many times as fast as there are cores"
    cores = page.s.environment.cores
    gains = {"product_gain": exactly(cores), "loop_gain": exactly(cores)}
    assert verdict(page, statement, everywhere=True, **gains) == "undecided"


def test_claims_that_need_no_clock_hold(page):
    verdicts = {claim.statement: claim.verdict for claim in page.s.result().claims}
    statements = "Under jit, the book's run is one product", "Complex dependencies are respected"
    assert verdicts == dict.fromkeys(statements, "holds")
