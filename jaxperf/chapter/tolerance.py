"""How much equal results may differ: it depends on the device and the precision of its products."""

from __future__ import annotations

FULL = ("highest", "float32")  # values of jax_default_matmul_precision with all of float32's digits
SHORT = 1e-2  # of outputs of about 1: TF32, a GPU's default, keeps 10 bits of each factor
BFLOAT16 = 5e-2  # of the same outputs, where each layer rounds its own to 8 bits


def tolerance(platform: str, on_cpu: float, *, precision: str | None = "highest") -> float:
    """Return how much rounding may change a result.

    Args:
      platform: of the devices: "cpu", "gpu", ...
      on_cpu: the tolerance on a CPU, which multiplies in float32 whatever the precision. A GPU whose products
        are equally exact gets ten times that, since its libraries choose the order of sums.
      precision: of products, as in `jax_default_matmul_precision`; None for the backend's default.
    """
    if platform == "cpu":
        return on_cpu
    return 10 * on_cpu if precision in FULL else max(SHORT, 10 * on_cpu)
