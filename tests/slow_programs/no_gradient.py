"""A solver of SciPy gets no gradient, so it calls the loss once for each parameter to estimate one."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

jax.config.update("jax_enable_x64", True)


@jax.jit
def loss(w, x, y):
    return jnp.mean((jnp.tanh(x @ w) - y) ** 2)


both = jax.jit(jax.value_and_grad(loss))


def main(steps: int = 15) -> np.ndarray:
    x = jnp.sin(jnp.outer(jnp.arange(2000), jnp.arange(1, 201)))
    y = jnp.tanh(x @ jnp.linspace(-0.1, 0.1, 200))

    def fit(w):
        return float(loss(w, x, y))  # -
        # + value, slope = both(w, x, y)
        # + return float(value), np.asarray(slope)

    start, options = np.zeros(200), {"maxiter": steps}
    result = optimize.minimize(fit, start, method="BFGS", options=options)  # - cause: finite differences
    # + result = optimize.minimize(fit, start, method="BFGS", options=options, jac=True)
    return np.abs(result.x).sum()


if __name__ == "__main__":
    print(main())
