import jax
import jax.numpy as jnp

from jaxperf.measure.compile_log import watch_compilation


def test_names_of_missing_gpus_fall_back_to_the_cpu(page):
    assert page.try_gpu(10_000) == jax.devices("cpu")[0]
    if jax.default_backend() == "cpu":
        assert page.gpus() == []
        assert page.try_gpu() == jax.devices("cpu")[0]
        assert page.try_all_gpus() == [jax.devices("cpu")[0]]
    else:
        assert page.try_gpu() == jax.devices()[0] and page.try_all_gpus() == jax.devices("gpu")


def test_uncommitted_and_numpy_operands_follow_and_two_committed_ones_are_an_error(page):
    assert page.first != page.second
    free, followed, numpy, error = page.outcomes.values()
    assert free == f"runs on {jax.devices()[0]}, result committed: False"
    assert followed == numpy == f"runs on {page.second}, result committed: True"
    assert error.startswith("ValueError: Received incompatible devices")


def test_rounded_products_keep_as_many_bits_as_they_say(page):
    one = jnp.ones((1, 1))
    for bits in (10, 7):
        ulp = 2.0**-bits
        assert float(page.rounded_dot(one * (1 + ulp), one, bits)[0, 0]) == 1 + ulp
        assert float(page.rounded_dot(one * (1 + ulp / 4), one, bits)[0, 0]) == 1
    assert page.float32 < page.tf32 < page.bf16


def test_claims_that_need_no_clock(page):
    by_statement = {claim.statement: claim.verdict for claim in page.s.result().claims}
    assert by_statement.pop("Operands must be on the same device") == "does not hold"
    assert set(by_statement.values()) == {"holds"} and len(by_statement) == 3


def test_committed_and_uncommitted_arguments_are_compiled_apart(page):
    triple = jax.jit(lambda x: x * 3)
    with watch_compilation() as log:
        for x in (page.fresh, page.loaded, page.loaded):
            triple(x)
    assert log.programs == page.compiled == 2
