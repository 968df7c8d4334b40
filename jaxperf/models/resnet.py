"""ResNet-18 as section 8.5 builds it for 28 x 28 images: a 3 x 3 stem of stride 1 and no max-pooling.

`resnet18` is the book's; a small one for quick tests is `ResNet(10, stages=SMALL_STAGES, rngs=...)`.
To equal Gluon's, convolutions have biases, strided ones are padded by one on both sides (JAX's "SAME" would
pad only the end), and BatchNorm has epsilon 1e-5, momentum 0.9 and biased running variances.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxperf.errors import JaxperfError
from jaxperf.models.initializers import HE_INIT
from jaxperf.models.lenet import check_images

RESNET18_STAGES = ((64, 2), (128, 2), (256, 2), (512, 2))
SMALL_STAGES = ((8, 1), (16, 1))  # has every kind of layer of ResNet-18, and runs in milliseconds
_conv3x3 = partial(nnx.Conv, kernel_size=(3, 3), padding=((1, 1), (1, 1)))
_conv1x1 = partial(nnx.Conv, kernel_size=(1, 1), padding="VALID")


def _as_they_are(arrays: Any, /, *, dtype: Any = None, inexact: bool = True) -> Any:
    # Flax would round running statistics, gamma and beta to the compute dtype. Left float32, the whole
    # normalization is computed in float32 and only its result is rounded.
    return arrays


_batch_norm = partial(nnx.BatchNorm, momentum=0.9, epsilon=1e-5, promote_dtype=_as_they_are)


class Residual(nnx.Module):
    """relu(bn2(conv2(relu(bn1(conv1(X))))) + X), where a 1 x 1 convolution may adapt X to the sum.

    Args:
      in_channels: channels of the input.
      num_channels: channels of the output.
      use_1x1conv: whether X goes through a 1 x 1 convolution; needed where channels or size change.
      strides: of the first 3 x 3 convolution and of the 1 x 1.
      kernel_init: how the weights start; biases start at zero, gamma at one, beta at zero.
      dtype: what to compute in; weights, running statistics and the normalization itself stay float32.
      rngs: where the weights' keys come from.

    Raises:
      JaxperfError: the sum would not fit without the 1 x 1 convolution.
    """

    def __init__(
        self,
        in_channels: int,
        num_channels: int,
        *,
        use_1x1conv: bool = False,
        strides: int = 1,
        kernel_init: nnx.Initializer = HE_INIT,
        dtype: DTypeLike | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        if not use_1x1conv and (strides != 1 or in_channels != num_channels):
            raise JaxperfError(
                f"{in_channels} to {num_channels} channels with stride {strides} does not add to X; "
                "pass use_1x1conv=True"
            )
        conv: Any = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.conv1 = _conv3x3(in_channels, num_channels, strides=strides, **conv)
        self.conv2 = _conv3x3(num_channels, num_channels, **conv)
        self.conv3 = _conv1x1(in_channels, num_channels, strides=strides, **conv) if use_1x1conv else None
        self.bn1 = _batch_norm(num_channels, dtype=dtype, rngs=rngs)
        self.bn2 = _batch_norm(num_channels, dtype=dtype, rngs=rngs)

    def __call__(self, X: jax.Array) -> jax.Array:
        """Map (n, h, w, in_channels) to (n, ceil(h / strides), ceil(w / strides), num_channels)."""
        Y = nnx.relu(self.bn1(self.conv1(X)))
        Y = self.bn2(self.conv2(Y))
        if self.conv3 is not None:
            X = self.conv3(X)
        return nnx.relu(Y + X)


class ResNet(nnx.Module):
    """Stem, stages of `Residual` blocks, global average pooling, dense layer.

    A new network is in training mode, as every Flax module is: BatchNorm uses the batch's own statistics and
    updates the running ones. After `net.eval()` it uses the running ones, after `net.train()` the batch's.

    Args:
      num_classes: width of the output.
      stages: (channels, blocks) for each stage; from the second stage on the first block halves the image.
      in_channels: channels of the images.
      kernel_init: how the weights start (`BOOK_INIT` for the book's); biases start at zero.
      dtype: what to compute in, e.g. bfloat16; None takes the promoted type of images and weights.
        Weights, running statistics and logits stay float32.
      rngs: where the weights' keys come from.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        stages: Sequence[tuple[int, int]],
        in_channels: int = 1,
        kernel_init: nnx.Initializer = HE_INIT,
        dtype: DTypeLike | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        options: Any = {"kernel_init": kernel_init, "dtype": dtype, "rngs": rngs}
        self.in_channels = in_channels
        channels = stages[0][0]
        self.conv = _conv3x3(in_channels, channels, **options)
        self.bn = _batch_norm(channels, dtype=dtype, rngs=rngs)
        self.stages: nnx.List[nnx.Sequential] = nnx.List()
        for i, (num_channels, num_blocks) in enumerate(stages):
            halving: Any = {"use_1x1conv": True, "strides": 2} if i else {}
            first = Residual(channels, num_channels, **halving, **options)
            rest = [Residual(num_channels, num_channels, **options) for _ in range(num_blocks - 1)]
            self.stages.append(nnx.Sequential(first, *rest))
            channels = num_channels
        self.dense = nnx.Linear(channels, num_classes, **options)

    def __call__(self, X: jax.Array) -> jax.Array:
        """Return logits (n, num_classes), float32, of images (n, h, w, in_channels).

        Raises:
          JaxperfError: images of another layout, or of integers.
        """
        check_images(X, channels=self.in_channels)
        X = nnx.relu(self.bn(self.conv(X)))
        for stage in self.stages:
            X = stage(X)
        logits = self.dense(X.mean((1, 2)))
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def resnet18(num_classes: int = 10, **options: Any) -> ResNet:
    """Return the book's ResNet-18 (section 8.5): a `ResNet` with its options, of which `rngs` must be given.

    With one input channel and ten classes it has 11,175,818 trainable values and 7,808 running statistics.
    """
    return ResNet(num_classes, stages=RESNET18_STAGES, **options)
