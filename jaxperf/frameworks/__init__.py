"""MXNet and PyTorch next to JAX: separate environments, one definition of the work, interleaved rounds."""

from jaxperf.frameworks.cold_start import memory, reload
from jaxperf.frameworks.command import status
from jaxperf.frameworks.environments import PEERS, Found, chosen, look, named, root
from jaxperf.frameworks.install import install
from jaxperf.frameworks.pool import GivenUpError, Pool, available_cores
from jaxperf.frameworks.sizes import GPU, SMOKE, Sizes
from jaxperf.frameworks.study import EVENTS, Limits, Study, study
from jaxperf.frameworks.summary import Comparison, agreement, comparisons, curves, measurements
from jaxperf.frameworks.worker import System
from jaxperf.frameworks.workloads import ONEDNN, Workload, workloads

__all__ = [
    "EVENTS",
    "GPU",
    "ONEDNN",
    "PEERS",
    "SMOKE",
    "Comparison",
    "Found",
    "GivenUpError",
    "Limits",
    "Pool",
    "Sizes",
    "Study",
    "System",
    "Workload",
    "agreement",
    "available_cores",
    "chosen",
    "comparisons",
    "curves",
    "install",
    "look",
    "measurements",
    "memory",
    "named",
    "reload",
    "root",
    "status",
    "study",
    "workloads",
]
