"""LeNet twice, as section 8.4 has it: a function of a list of arrays, and the same network as a Flax module.

Shapes, with n images per batch:
    X        (n, 28, 28, 1)   float32, NHWC
    W1, b1   (20, 1, 3, 3)    convolution, out, in, height, width; 26 x 26 after it, 13 x 13 after pooling
    W2, b2   (50, 20, 5, 5)   convolution; 9 x 9 after it, 4 x 4 after pooling
    W3, b3   (800, 128)       dense, in, out; its rows follow the image with channels first: 50 x 4 x 4
    W4, b4   (128, 10)        dense
The list keeps the book's layout, so its weights work here unchanged; the module uses Flax's.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from jaxperf.errors import JaxperfError
from jaxperf.models.initializers import HE_INIT, initializer

FLATTENED = (4, 4, 50)  # what the first dense layer reads: height, width, channels
PARAM_SHAPES = ((20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,))


def check_images(X: jax.Array | np.ndarray, *, channels: int) -> None:
    """Reject images that are not NHWC floats with so many channels; bytes would be taken as they are."""
    if X.ndim != 4 or X.shape[3] != channels or not jnp.issubdtype(X.dtype, jnp.floating):
        raise JaxperfError(
            f"images are {X.dtype} of shape {X.shape}, the network reads floats (n, height, width, "
            f"{channels}); pass X.transpose(0, 2, 3, 1) of NCHW, and X.astype('float32') / 255 of bytes"
        )


def lenet_params(key: jax.Array, *, scale: float = 0.01) -> list[jax.Array]:
    """Return fresh parameters [W1, b1, ..., W4, b4] in the book's shapes, float32; biases are zero.

    Args:
      key: a `jax.random.key`.
      scale: the weights' standard deviation; the book's is 0.01.
    """
    draw = initializer(jax.random.normal, lambda _: scale)
    keys = jax.random.split(key, len(PARAM_SHAPES))
    return [draw(k, shape) if len(shape) > 1 else jnp.zeros(shape) for k, shape in zip(keys, PARAM_SHAPES)]


def lenet(X: jax.Array, params: Sequence[jax.Array]) -> jax.Array:
    """Return the logits of the network, written from scratch.

    Args:
      X: images, (n, 28, 28, 1), float32, NHWC.
      params: [W1, b1, W2, b2, W3, b3, W4, b4] in the book's shapes.

    Returns:
      Logits, (n, 10).

    Raises:
      JaxperfError: images of another layout, or of integers.
    """
    check_images(X, channels=1)
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h1 = _avg_pool(jax.nn.relu(_conv(X, W1) + b1))
    h2 = _avg_pool(jax.nn.relu(_conv(h1, W2) + b2))
    flat = h2.transpose(0, 3, 1, 2).reshape(len(X), -1)  # channels first, the order of W3's rows
    h3 = jax.nn.relu(flat @ W3 + b3)
    return h3 @ W4 + b4


def _conv(X: jax.Array, W: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(X, W, (1, 1), "VALID", dimension_numbers=("NHWC", "OIHW", "NHWC"))


def _avg_pool(X: jax.Array) -> jax.Array:
    """Means of 2 x 2 pixels; the last row or column of an odd number is dropped.

    A sum of slices fuses with the operations around it: on a CPU, a training step at batch 256 runs 1.3 times
    as fast (1.2 to 1.6) as with `lax.reduce_window`, for which XLA writes arrays of zeros (1.2 on JAX 0.12).
    """
    rows, columns = (size // 2 * 2 for size in X.shape[1:3])
    a, b, c, d = (X[:, i:rows:2, j:columns:2] for i in (0, 1) for j in (0, 1))
    return (a + b + c + d) / 4


def sgd(params: list[jax.Array], grads: list[jax.Array], lr: float, batch_size: int) -> list[jax.Array]:
    """Return new arrays after one step of the book's stochastic gradient descent.

    Args:
      params: any tree of arrays.
      grads: the same tree; gradients of the loss summed over the batch.
      lr: learning rate.
      batch_size: how many examples `grads` sums over, on all devices together.

    Returns:
      `param - lr * grad / batch_size` for each leaf.
    """
    return jax.tree.map(lambda param, grad: param - lr * grad / batch_size, params, grads)


class LeNet(nnx.Module):
    """The same network in Flax's layout: HWIO kernels, dense rows that follow a channel-last image.

    Args:
      kernel_init: how the weights start (`BOOK_INIT` for the book's); biases start at zero.
      dtype: what to compute in, e.g. bfloat16; None takes the promoted type of images and weights.
        Weights and logits stay float32.
      rngs: where the weights' keys come from.
    """

    def __init__(
        self, *, kernel_init: nnx.Initializer = HE_INIT, dtype: DTypeLike | None = None, rngs: nnx.Rngs
    ) -> None:
        options: Any = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.conv1 = nnx.Conv(1, 20, (3, 3), padding="VALID", **options)
        self.conv2 = nnx.Conv(20, 50, (5, 5), padding="VALID", **options)
        self.dense1 = nnx.Linear(800, 128, **options)
        self.dense2 = nnx.Linear(128, 10, **options)

    def __call__(self, X: jax.Array) -> jax.Array:
        """Return logits (n, 10), float32, of images (n, 28, 28, 1); raises JaxperfError as `lenet` does."""
        check_images(X, channels=1)
        h1 = _avg_pool(nnx.relu(self.conv1(X)))
        h2 = _avg_pool(nnx.relu(self.conv2(h1)))
        h3 = nnx.relu(self.dense1(h2.reshape(len(h2), -1)))
        logits = self.dense2(h3)
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
