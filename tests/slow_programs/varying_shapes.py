"""Sequences of many lengths go into a jitted function, and each length compiles."""

import jax
import jax.numpy as jnp
import numpy as np

# + LONGEST = 32


@jax.jit
def score(tokens):  # -
    return jnp.tanh(jnp.cumsum(tokens)).sum()  # -


# + def score(tokens, length):
# +     inside = jnp.arange(LONGEST) < length
# +     return jnp.where(inside, jnp.tanh(jnp.cumsum(tokens)), 0.0).sum()


def main() -> float:
    rng = np.random.default_rng(0)
    sequences = [rng.standard_normal(n).astype(np.float32) for n in range(20, 32)]
    return sum(score(s) for s in sequences)  # - cause: shape
    # + return sum(score(np.pad(s, (0, LONGEST - len(s))), len(s)) for s in sequences)


if __name__ == "__main__":
    print(main())
