"""A solution of exercise 8.8.1."""

import math


def micro_batches(stages, idle):
    bubbles = stages - 1
    return max(1, math.floor(round(bubbles * (1 - idle) / idle, 9)) + 1)
