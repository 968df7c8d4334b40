"""A report that is made once, outside of jit: each of its operations compiles a program of its own."""

# + import jax
import jax.numpy as jnp

FIGURES = ("mean", "std", "min", "max", "median", "prod", "ptp", "argmax", "any", "all", "var", "sum")


# + @jax.jit
def report(x):
    figures = []
    for name in FIGURES:
        figures.append(getattr(jnp, name)(x) * 1.0)  # cause: eager recompiles
    return sum(figures)


def main() -> float:
    return float(report(jnp.linspace(-1, 1, 4096)))


if __name__ == "__main__":
    print(main())
