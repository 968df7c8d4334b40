import chex
import pytest


def test_the_compiler_counts_the_flops_that_arithmetic_gives(section):
    side, batch = section.s.side, section.batch
    conv2 = 2 * 9 * 9 * 50 * 25 * 20  # outputs times kernel, one multiplication and one addition each
    conv1, dense = 2 * 26 * 26 * 20 * 9, 2 * (800 * 128 + 128 * 10)
    by_hand = [
        10 * 2 * 20**3,
        2 * (512 * 256 + 256 * 128 + 128 * 2),
        side**2,
        2 * side**3,
        batch * (3 * (conv1 + conv2 + dense) - conv1),  # nothing needs the gradient of the images
    ]
    counted = [flops for flops, _ in section.work.values()]
    assert counted == pytest.approx(by_hand, rel=0.03)


def test_claims_that_need_no_clock_hold(section):
    verdicts = {claim.statement: claim.verdict for claim in section.s.result().claims}
    by_size = "Checkpoints need less memory, and mixed precision too"
    assert verdicts.pop(by_size) == "not measurable here"
    assert len(verdicts) == 3 and set(verdicts.values()) == {"holds"}


def test_a_bill_predicts_what_it_saves(section):
    section.bills["old"], section.bills["new"] = {"calls": 3.0, "FLOPs": 1.0}, {"calls": 1.0, "FLOPs": 1.0}
    assert section.predict("old", 10.0, "new") == pytest.approx(10 / 8)
    assert section.predict("old", 1.0, "new") == pytest.approx(1 / 2)  # never less than the new bill


def test_all_kinds_of_transformer_step_compute_the_same_gradient(section):
    params, X, y = section.tokens, section.rows[0], section.row_labels[0]
    stepped = {name: step(params, X, y)[0] for name, step in section.steps.items()}
    chex.assert_trees_all_close(stepped["checkpoint"], stepped["float32"], rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(stepped["mixed"], stepped["float32"], atol=5e-3)
    assert section.temporaries["checkpoint"] < section.temporaries["float32"]
