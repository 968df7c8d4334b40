"""Examples of changes, by cause, where words are not enough: complete, and the same for every program."""

EXAMPLES = {
    "data": """\
import concurrent.futures, itertools    # let a thread read the next batch during a step
read = concurrent.futures.ThreadPoolExecutor(1).submit    # abs(i) stands for reading batch i
for batch, _ in itertools.pairwise(read(abs, i) for i in range(101)):
    x = batch.result()    # then the step with x""",
    "dispatch": """\
import jax    # many steps in one program: scan where one needs the one before, else jax.vmap
w, losses = jax.lax.scan(lambda w, x: (w - 0.1 * x, w**2), 1.0, jax.numpy.ones(100))""",
    "donation": """\
import jax    # where the step is jitted, for the argument whose memory the result can take
step = jax.jit(lambda w, x: w - 0.1 * x, donate_argnums=0)""",
    "module dispatch": """\
from flax import nnx
model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
forward = nnx.cached_partial(nnx.jit(lambda model, x: model(x)), model)    # once
forward(model.bias[...])    # in the loop: what the module learns stays in it""",
    "shape": """\
import numpy as np
x = np.ones(300, np.float32)
x = np.pad(x, (0, (1 << (len(x) - 1).bit_length()) - len(x)))    # 512: few sizes, not many""",
    "static value": """\
import jax
step = jax.jit(lambda w, rate: w - rate * w)    # without static_argnames
step(1.0, 0.1), step(1.0, 0.2)    # traced once""",
}
