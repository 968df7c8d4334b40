"""`jaxperf selfcheck`: are the instruments right about what is known?"""

from jaxperf.selfcheck.command import main

__all__ = ["main"]
