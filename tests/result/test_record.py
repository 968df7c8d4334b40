"""A result gives what its blocks hold."""

from jaxperf.result import Claim, Environment, Fact, Measurement, Note, Result, Table


def test_a_result_gives_what_its_blocks_hold_in_their_order() -> None:
    first, second = Measurement("m", "s", (1.0,)), Measurement("n", "s", (2.0,))
    claim = Claim("a", "holds", "b", "c")
    blocks = (
        Table("t", (first,)),
        Note("one"),
        Fact("n", 3),
        claim,
        Table("d", (second,)),
        Fact("k", "x"),
    )
    result = Result("e", "8.1", "t", "q", {}, Environment(), blocks)
    assert result.measurements == (first, second)
    assert (result.facts, result.claims) == ({"n": 3, "k": "x"}, (claim,))
