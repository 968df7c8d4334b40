"""Training: the loop, evaluation on all devices, the live curve."""

from jaxperf.train.animator import Animator, check_picture
from jaxperf.train.evaluate import Evaluator, evaluate_accuracy
from jaxperf.train.fitting import fitting
from jaxperf.train.loop import Epoch, train

__all__ = ["Animator", "Epoch", "Evaluator", "check_picture", "evaluate_accuracy", "fitting", "train"]
