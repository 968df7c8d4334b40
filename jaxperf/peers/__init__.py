"""MXNet and PyTorch beside JAX: environments of their own, one definition of the work, interleaved rounds."""

from jaxperf.peers.command import status
from jaxperf.peers.environments import look, root
from jaxperf.peers.fresh import memory, reload
from jaxperf.peers.install import install
from jaxperf.peers.known import PEERS, chosen
from jaxperf.peers.pool import Pool, available_cores
from jaxperf.peers.ratios import CONFIDENCE, Ratio, ratio
from jaxperf.peers.study import Limits, Study, study
from jaxperf.peers.summary import agreement, comparisons, curves, facts, line, measurements, shown
from jaxperf.peers.worker import System
from jaxperf.peers.workloads import SMOKE, Sizes, Workload, workloads

__all__ = [
    "CONFIDENCE",
    "PEERS",
    "SMOKE",
    "Limits",
    "Pool",
    "Ratio",
    "Sizes",
    "Study",
    "System",
    "Workload",
    "agreement",
    "available_cores",
    "chosen",
    "comparisons",
    "curves",
    "facts",
    "install",
    "line",
    "look",
    "measurements",
    "memory",
    "ratio",
    "reload",
    "root",
    "shown",
    "status",
    "study",
    "workloads",
]
