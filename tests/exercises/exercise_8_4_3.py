"""A solution of exercise 8.4.3."""

import jax
import jax.numpy as jnp


def allreduce(trees):
    places = [jax.tree.leaves(tree)[0].device for tree in trees]
    total, *others = jax.device_put(trees, places[0])
    for tree in others:
        total = jax.tree.map(jnp.add, total, tree)
    return [jax.device_put(total, place) for place in places]
