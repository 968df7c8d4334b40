"""The multilayer perceptron of sections 8.1 and 8.2: dense layers with relu between them."""

import itertools
from collections.abc import Sequence

import jax
from flax import nnx
from jax.typing import DTypeLike

from jaxperf.models.initializers import HE_INIT


class MLP(nnx.Module):
    """Dense layers of the given widths, relu after each but the last.

    The default is section 8.1's network; section 8.2's is `MLP((512, 2048, 512, 1), rngs=...)`.

    Args:
      sizes: the input's width, each hidden layer's, and the output's.
      kernel_init: how the weights start; biases start at zero.
      dtype: what to compute in; None takes the promoted type of input and weights. Weights stay float32.
      rngs: where the weights' keys come from.
    """

    def __init__(
        self,
        sizes: Sequence[int] = (512, 256, 128, 2),
        *,
        kernel_init: nnx.Initializer = HE_INIT,
        dtype: DTypeLike | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.layers = nnx.List(
            nnx.Linear(n_in, n_out, kernel_init=kernel_init, dtype=dtype, rngs=rngs)
            for n_in, n_out in itertools.pairwise(sizes)
        )

    def __call__(self, X: jax.Array) -> jax.Array:
        """Map (n, sizes[0]) to (n, sizes[-1])."""
        *hidden, last = self.layers
        for layer in hidden:
            X = nnx.relu(layer(X))
        return last(X)
