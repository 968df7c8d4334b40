"""Results, their files, and the rule that compares paired values."""

from jaxperf.result.blocks import (
    Block,
    Claim,
    Code,
    Fact,
    Failed,
    Found,
    Grid,
    Heading,
    Note,
    Table,
    Text,
    Verdict,
)
from jaxperf.result.ratio import Decision, Ratio, both, ratio, ratio_of, turns
from jaxperf.result.record import About, Environment, Result
from jaxperf.result.store import load_result, save_result
from jaxperf.result.values import Measurement, Reference, Span, Timeline, interval

__all__ = [
    "About",
    "Block",
    "Claim",
    "Code",
    "Decision",
    "Environment",
    "Fact",
    "Failed",
    "Found",
    "Grid",
    "Heading",
    "Measurement",
    "Note",
    "Ratio",
    "Reference",
    "Result",
    "Span",
    "Table",
    "Text",
    "Timeline",
    "Verdict",
    "both",
    "interval",
    "load_result",
    "ratio",
    "ratio_of",
    "save_result",
    "turns",
]
