"""The rules: each module enters its causes, and the functions that find them, into the table."""

from jaxperf.watch.rules import eager, elements, habits, idle, programs, small_programs, traces  # noqa: F401
from jaxperf.watch.rules.table import CAUSES, RULES, Finding, advice_for, find_causes

__all__ = ["CAUSES", "RULES", "Finding", "advice_for", "find_causes"]
