"""MXNet and PyTorch next to JAX: separate environments, one definition of the work, interleaved rounds."""

from jaxperf.frameworks.budget import STARTS, Budget
from jaxperf.frameworks.environments import PEERS, look
from jaxperf.frameworks.pool import Pool
from jaxperf.frameworks.run_study import Limits, study
from jaxperf.frameworks.sizes import SMOKE, Sizes
from jaxperf.frameworks.study import Study
from jaxperf.frameworks.summary import agreement, comparisons, measurements
from jaxperf.frameworks.worker import System
from jaxperf.frameworks.workloads import ONEDNN, Workload, workloads
from jaxperf.result.machine import available_cores

__all__ = [
    "ONEDNN",
    "PEERS",
    "SMOKE",
    "STARTS",
    "Budget",
    "Limits",
    "Pool",
    "Sizes",
    "Study",
    "System",
    "Workload",
    "agreement",
    "available_cores",
    "comparisons",
    "look",
    "measurements",
    "study",
    "workloads",
]
