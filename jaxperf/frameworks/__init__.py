"""MXNet and PyTorch next to JAX: separate environments, one definition of the work, interleaved rounds."""

from jaxperf.frameworks.cold_start import memory, reload
from jaxperf.frameworks.command import peer_status
from jaxperf.frameworks.environments import (
    PEERS,
    PeerEnvironment,
    look,
    named_interpreters,
    named_peers,
    root,
)
from jaxperf.frameworks.install import install
from jaxperf.frameworks.pool import GivenUpError, Pool, available_cores
from jaxperf.frameworks.sizes import GPU, SMOKE, Sizes
from jaxperf.frameworks.study import EVENTS, Limits, Study, study
from jaxperf.frameworks.summary import FrameworkComparison, agreement, comparisons, curves, measurements
from jaxperf.frameworks.worker import System
from jaxperf.frameworks.workloads import ONEDNN, Workload, workloads

__all__ = [
    "EVENTS",
    "GPU",
    "ONEDNN",
    "PEERS",
    "SMOKE",
    "FrameworkComparison",
    "GivenUpError",
    "Limits",
    "PeerEnvironment",
    "Pool",
    "Sizes",
    "Study",
    "System",
    "Workload",
    "agreement",
    "available_cores",
    "comparisons",
    "curves",
    "install",
    "look",
    "measurements",
    "memory",
    "named_interpreters",
    "named_peers",
    "peer_status",
    "reload",
    "root",
    "study",
    "workloads",
]
