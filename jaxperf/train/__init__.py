"""Training: the loop, evaluation on all devices, and checkpoints to resume from."""

from jaxperf.train.checkpoint import Checkpoints, Policy
from jaxperf.train.checkpoint_folder import CheckpointFolder
from jaxperf.train.evaluate import Evaluator
from jaxperf.train.loop import Trainer, train
from jaxperf.train.progress import Epoch

__all__ = ["CheckpointFolder", "Checkpoints", "Epoch", "Evaluator", "Policy", "Trainer", "train"]
