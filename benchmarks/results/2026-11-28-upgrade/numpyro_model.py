"""NUTS on a hierarchical linear model, 400 observations in 8 groups; a program for `jaxperf upgrade`."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

rng = np.random.default_rng(0)
groups = rng.integers(0, 8, 400)
X = rng.normal(size=(400, 3))
y = X @ np.array([1.0, -2.0, 0.5]) + rng.normal(size=8)[groups]
y += 0.3 * rng.normal(size=400)


def model(X, groups, y=None):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 8):
        a = numpyro.sample("a", dist.Normal(0.0, tau))
    b = numpyro.sample("b", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(a[groups] + X @ b, sigma), obs=y)


mcmc = MCMC(NUTS(model), num_warmup=150, num_samples=150, progress_bar=False)
mcmc.run(jax.random.key(0), X, groups, y)
print(float(mcmc.get_samples()["sigma"].mean()))
