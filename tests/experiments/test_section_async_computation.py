"""Section 8.2: its functions compute what the text says, and a whole pass keeps what it promises.

No test asks how long anything takes.
"""

import logging

import numpy as np
import pytest

from jaxperf.chapter import cells


@pytest.fixture(scope="module")
def section(script):
    logger = logging.getLogger("jax")  # which the section silences; other tests in this process read it
    level = logger.level
    yield cells.load(script, "--smoke", "--batches=6", "--examples=8", "--side=300")
    logger.setLevel(level)


def batches(section):
    return list(section.data_iter(section.from_host, show=False))


def test_the_step_is_gluons_sgd_on_half_the_squared_error(section):
    X, y = batches(section)[0]
    params = section.initial
    assert [(W.shape, len(b)) for W, b in params] == [((512, 2048), 2048), ((2048, 512), 512), ((512, 1), 1)]
    (W1, b1), (W2, b2), (W3, b3) = [(np.asarray(W, np.float64), np.asarray(b)) for W, b in params]
    h1 = np.maximum(np.asarray(X, np.float64) @ W1 + b1, 0)
    h2 = np.maximum(h1 @ W2 + b2, 0)
    wrong = (h2 @ W3 + b3)[:, 0] - np.asarray(y)
    changed, loss = section.step(params, X, y)
    assert float(loss) == pytest.approx(0.5 * np.mean(wrong**2), rel=1e-4)
    np.testing.assert_allclose(changed[2][1], b3 - 0.005 * wrong.mean(), rtol=1e-3, atol=1e-6)
    last = W3 - 0.005 * h2.T @ wrong[:, None] / len(wrong)
    np.testing.assert_allclose(changed[2][0], last, rtol=1e-3, atol=1e-5)


def test_losses_are_equal_and_in_order_however_they_are_waited_for(section):
    ways = ("each", "window", "never")
    losses = {way: list(map(float, section.train(iter(batches(section)), way))) for way in ways}
    assert len(set(losses["each"])) == 6
    assert losses["each"] == losses["window"] == losses["never"]
    outputs = [list(map(float, section.predict(iter(batches(section)), way))) for way in ways]
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize(("wait", "waited_for"), [("each", [0, 1, 2, 3]), ("window", [0, 1]), ("never", [])])
def test_each_way_waits_for_its_own_output(section, wait, waited_for):
    asked = []

    class Output:
        def __init__(self, i):
            self.i = i

        def item(self):
            asked.append(self.i)

    outputs = []
    for i in range(4):
        outputs.append(Output(i))
        section.hold_back(outputs, wait)
    assert asked == waited_for
