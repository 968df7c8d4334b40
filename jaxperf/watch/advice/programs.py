"""What to change about the compiled programs themselves; `advice.advice` chooses among the texts."""

from __future__ import annotations

from jaxperf.watch.finding import Advice

TEXTS = {
    "constant work": Advice(
        "a program computes the same in each call",
        "Compute it once, in a jitted function of its own, and pass the result to {name} as an argument.",
        "8.1.2 Computational performance",
    ),
    "donation": Advice(
        "an argument is copied that the result replaces",
        "",
        "8.2.4 The impact of asynchronous computation on memory",
    ),
    "eager copy": Advice(
        "an array is copied to change a part of it",
        "Do so in a function under jax.jit with donate_argnums of the array, which then changes in place.",
        "8.2.4 The impact of asynchronous computation on memory",
    ),
    "module state": Advice(
        "nnx.jit copies the state of a module in each call",
        "Jit {name} with {argument}: the module needs its old arrays no more, once it has the new ones.",
        "8.2.4 The impact of asynchronous computation on memory",
    ),
    "float64": Advice(
        "float32 becomes float64",
        "Give the other operand the type of the data, as with .astype(np.float32).",
        "Mixed precision",
    ),
    "all float64": Advice(
        "a program computes in float64",
        'If float32 is enough, make {argument} and all else that {name} gets .astype("float32").',
        "Mixed precision",
    ),
    "all float64 at a call": Advice(
        "a program computes in float64",
        "If float32 is enough, give {name} arrays of that type, or leave jax_enable_x64 off.",
        "Mixed precision",
    ),
    "unrolled": Advice(
        "Python unrolls a loop while tracing",
        "Write the loop as jax.lax.fori_loop, or as jax.lax.scan over stacked weights.",
        "8.1.3 What tracing forbids",
    ),
    "constant": Advice(
        "a large array is compiled into a program",
        "Put {argument} on the device once, with jax.device_put, and pass it to {name}, which only refers to "
        "it, as an argument.",
        "8.1.2 Getting the symbolic program",
    ),
    "callback": Advice(
        "the program stops for Python on the host",
        "Do the same with jnp or lax, and use jax.debug.print only where somebody reads it.",
        "8.2.1 Asynchronous computation in JAX",
    ),
    "on the cpu": Advice(
        "a program runs on the CPU beside an accelerator",
        "Leave out device=cpu and jax.default_device, and give {name} arrays on the accelerator.",
        "Committed and uncommitted arrays",
    ),
    "shards": Advice(
        "one device gets more work than the others",
        'Give all devices equal shares: jax.device_put(x, NamedSharding(mesh, P("data"))) over a '
        "jax.make_mesh of all of them.",
        "8.4.1 Data parallelism",
    ),
}
