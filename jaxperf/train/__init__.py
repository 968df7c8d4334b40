"""Training: the loop, evaluation on all devices, the live curve."""

from jaxperf.train.animator import Animator
from jaxperf.train.evaluate import Evaluator, evaluate_accuracy
from jaxperf.train.loop import Epoch, train

__all__ = ["Animator", "Epoch", "Evaluator", "evaluate_accuracy", "train"]
