"""Training: the loop, evaluation on all devices, the live curve, and checkpoints to resume from."""

from jaxperf.train.animator import Animator, check_picture
from jaxperf.train.checkpoint import Checkpoints, Policy
from jaxperf.train.evaluate import Evaluator, evaluate_accuracy
from jaxperf.train.fitting import fitting
from jaxperf.train.folder import CheckpointFolder
from jaxperf.train.loop import evaluator_of, train
from jaxperf.train.progress import Epoch
from jaxperf.train.run import Run

__all__ = [
    "Animator",
    "CheckpointFolder",
    "Checkpoints",
    "Epoch",
    "Evaluator",
    "Policy",
    "Run",
    "check_picture",
    "evaluate_accuracy",
    "evaluator_of",
    "fitting",
    "train",
]
