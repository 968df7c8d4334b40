"""Examples of changes, by cause: complete code that does not depend on the program."""

EXAMPLES = {
    "data": """\
import concurrent.futures    # a thread reads the next batch during a step
thread, batches = concurrent.futures.ThreadPoolExecutor(1), iter(range(100))    # your batches
coming = thread.submit(next, batches, None)
while (batch := coming.result()) is not None:
    coming = thread.submit(next, batches, None)
    x = batch    # then the step with x""",
    "slow data": """\
import concurrent.futures    # eight reads at once; abs(i) stands for reading batch i
with concurrent.futures.ThreadPoolExecutor(8) as threads:
    for batch in threads.map(abs, range(100)):    # from Python 3.14 on, buffersize bounds them
        x = batch    # then the step with x""",
    "dispatch": """\
import jax
w, _ = jax.lax.scan(lambda w, _: (w - 0.1 * w, None), 1.0, length=100)    # 100 steps""",
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
step = jax.jit(lambda w, rate: w - rate * w)    # no argument is static
step(1.0, 0.1), step(1.0, 0.2)    # traced once""",
}
