"""Watch an unchanged program: where its time goes, why, and what to change.

The package is not called `watch`, since `jaxperf.watch` is the function.
"""

from jaxperf.watching.blocks import Watched, watch
from jaxperf.watching.program import run_module, run_script

__all__ = ["Watched", "run_module", "run_script", "watch"]
