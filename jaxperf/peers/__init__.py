"""MXNet and PyTorch next to JAX: separate environments, one definition of the work, interleaved rounds."""

from jaxperf.peers.command import status
from jaxperf.peers.environments import PEERS, Found, chosen, look, named, root
from jaxperf.peers.fresh import memory, reload
from jaxperf.peers.install import install
from jaxperf.peers.pool import GivenUpError, Pool, available_cores
from jaxperf.peers.sizes import GPU, SMOKE, Sizes
from jaxperf.peers.study import EVENTS, Limits, Study, study
from jaxperf.peers.summary import Comparison, agreement, comparisons, curves, measurements
from jaxperf.peers.worker import System
from jaxperf.peers.workloads import ONEDNN, Workload, workloads

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
