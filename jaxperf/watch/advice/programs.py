"""What to change about the compiled programs themselves; see `advice`."""

from __future__ import annotations

from jaxperf.watch.finding import Advice

TEXTS = {
    "constant work": Advice(
        "a program computes the same in each call",
        """
          {line}
        + # compute it once, in a jitted function of its own, and pass the result to {name} as an argument
        """,
        "8.1.2 Computational performance",
    ),
    "donation": Advice(
        "an argument is copied that the result replaces",
        """
        - @jax.jit
        + @functools.partial(jax.jit, donate_argnums=0)   # the position of what the result replaces
          {def}
              ...
        """,
        "8.2.4 The impact of asynchronous computation on memory",
    ),
    "eager copy": Advice(
        "an array is copied to change a part of it",
        """
        - {line}
        + # the same in a function under jax.jit with donate_argnums of the array, which then changes in place
        """,
        "8.2.4 The impact of asynchronous computation on memory",
    ),
    "module state": Advice(
        "nnx.jit copies the state of a module in each call",
        """
        - @nnx.jit
        + @nnx.jit({argument})   # the module takes what the program returns, and needs the old arrays no more
          {def}
              ...
        """,
        "8.2.4 The impact of asynchronous computation on memory",
    ),
    "float64": Advice(
        "float32 becomes float64",
        """
        - {line}
        + # give the other operand the type of the data: .astype(np.float32)
        """,
        "Mixed precision",
    ),
    "all float64": Advice(
        "a program computes in float64",
        """
          {line}
        + {argument} = {argument}.astype("float32")   # if that is enough, of all that the program gets
        """,
        "Mixed precision",
    ),
    "all float64 at a call": Advice(
        "a program computes in float64",
        """
        + # if float32 is enough, give it arrays of that type, or leave jax_enable_x64 off
          {line}
        """,
        "Mixed precision",
    ),
    "unrolled": Advice(
        "Python unrolls a loop while tracing",
        """
        - {loop}
        + x = jax.lax.fori_loop(0, n, lambda i, x: ..., x)   # or lax.scan over stacked weights
        """,
        "8.1.3 What tracing forbids",
    ),
    "constant": Advice(
        "a large array is compiled into a program",
        """
        - {line}
        + {argument} = jax.device_put({argument})   # once
        + result = {name}(x, {argument})   # an argument of {name}, which only referred to it
        """,
        "8.1.2 Getting the symbolic program",
    ),
    "callback": Advice(
        "the program stops for Python on the host",
        """
        - {line}
        + # the same with jnp or lax; jax.debug.print only where somebody reads it
        """,
        "8.2.1 Asynchronous computation in JAX",
    ),
    "on the cpu": Advice(
        "a program runs on the CPU beside an accelerator",
        """
        - {line}
        + # leave out device=cpu and jax.default_device, and give it arrays on the accelerator
        """,
        "Committed and uncommitted arrays",
    ),
    "shards": Advice(
        "one device gets more work than the others",
        """
        - {line}
        + mesh = jax.make_mesh((jax.device_count(),), ("data",))
        + x = jax.device_put(x, NamedSharding(mesh, P("data")))   # equal shares
        """,
        "8.4.1 Data parallelism",
    ),
}
