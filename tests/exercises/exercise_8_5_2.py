"""A solution of exercise 8.5.2."""

import jax


def gradient(loss, params, shares):
    count = sum(len(y) for _, y in shares)
    grads = [jax.grad(loss)(params, X, y) for X, y in shares]
    weights = [len(y) / count for _, y in shares]
    return jax.tree.map(lambda *gs: sum(w * g for w, g in zip(weights, gs)), *grads)
