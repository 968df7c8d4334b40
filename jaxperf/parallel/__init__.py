"""Many devices: listing them, dividing a batch, summing over devices, and the training step four ways."""

from jaxperf.parallel.by_hand import get_params, pmap_train_batch, train_batch
from jaxperf.parallel.collectives import allreduce
from jaxperf.parallel.data_parallel import WAYS, BatchNorm, Step, Way, make_step
from jaxperf.parallel.devices import first_devices
from jaxperf.parallel.model import Model, model_of, model_of_function
from jaxperf.parallel.multihost import of_this_process, processes_of, rows_of
from jaxperf.parallel.split import check_divisible, split_and_load
from jaxperf.parallel.update import TrainState, softmax_cross_entropy

__all__ = [
    "WAYS",
    "BatchNorm",
    "Model",
    "Step",
    "TrainState",
    "Way",
    "allreduce",
    "check_divisible",
    "first_devices",
    "get_params",
    "make_step",
    "model_of",
    "model_of_function",
    "of_this_process",
    "pmap_train_batch",
    "processes_of",
    "rows_of",
    "softmax_cross_entropy",
    "split_and_load",
    "train_batch",
]
