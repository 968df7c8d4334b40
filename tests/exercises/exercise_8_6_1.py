"""A solution of exercise 8.6.1."""

import sys

import jax


def try_gpu(i=0):
    try:
        return jax.devices("gpu")[i]
    except (RuntimeError, IndexError):
        print(f"no GPU {i}: using the CPU", file=sys.stderr)
        return jax.devices("cpu")[0]
