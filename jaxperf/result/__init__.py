"""Results, their files, and the rule that compares paired values."""

from jaxperf.result.ratio import Decision, Ratio, both, ratio, ratio_of, turns
from jaxperf.result.record import (
    About,
    Block,
    Claim,
    Code,
    Environment,
    Fact,
    Failed,
    Found,
    Grid,
    Heading,
    Note,
    Result,
    Table,
    Text,
    Verdict,
)
from jaxperf.result.store import load_result, save_result
from jaxperf.result.values import Measurement, Reference, Span, Timeline, interval
