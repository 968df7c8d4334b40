"""`jaxperf selfcheck`: do the instruments give the right answers where these are known?"""

from jaxperf.selfcheck.command import main

__all__ = ["main"]
