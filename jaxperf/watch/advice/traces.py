"""What to change about what is traced and compiled again; `advice.advice` chooses among the texts."""

from __future__ import annotations

from jaxperf.watch.finding import Advice

TEXTS = {
    "new function": Advice(
        "a new function is jitted on each call",
        "Apply {wrapper} to {name} once, at the module's level or before the loop; what varies is an "
        "argument.",
        "8.1.3 When is a function traced again?",
    ),
    "new function of values": Advice(
        "a new function is jitted on each call",
        "Apply {wrapper} to {name} once, at the module's level or before the loop, with {argument} as "
        "arguments.",
        "8.1.3 When is a function traced again?",
    ),
    "shape": Advice(
        "an argument's shape varies",
        "Pad {argument}, and mask the rest in {name}, unless the size is part of the result:",
        "8.1.3 When is a function traced again?",
    ),
    "partial batch": Advice(
        "the last batch is smaller and compiles a second program",
        "Give {name} full batches only: drop the last one, or pad it and mask the loss.",
        "8.1.3 When is a function traced again?",
    ),
    "static value": Advice(
        "a static argument varies",
        "Make {argument} an ordinary argument of {name}, and branch on it with jnp.where or lax.cond:",
        "8.1.3 When is a function traced again?",
    ),
    "static object": Advice(
        "a static argument is a new object each time",
        "Make {argument} once, before the loop; or give {name} what it reads of it as ordinary arguments; or "
        "give its class __eq__ and __hash__, so that equal objects share a program.",
        "8.1.3 When is a function traced again?",
    ),
    "static part": Advice(
        "a static part of an argument is a new object each time",
        "Make the {argument} of {name} once, before the loop, and give each new {name} the same object.",
        "8.1.3 When is a function traced again?",
    ),
    "placement": Advice(
        "a function is compiled again for arguments that are placed in another way",
        "Place the arguments of {name} in one way before every call: all of them by jax.device_put with one "
        "device or sharding, which commits them to it, or none of them.",
        "8.1.3 When is a function traced again?",
    ),
    "dtype": Advice(
        "an argument's dtype varies",
        "Give {name} one dtype on every call: jnp.asarray({argument}, jnp.float32).",
        "8.1.3 When is a function traced again?",
    ),
    "weak type": Advice(
        "a Python number becomes an array after the first call",
        "Begin with an array: jnp.float32(0.1) in place of 0.1, before the first call of {name}.",
        "8.1.3 When is a function traced again?",
    ),
    "structure": Advice(
        "an argument's structure varies",
        "Pass {name} the same keys and lengths on every call; None counts as another structure.",
        "8.1.3 When is a function traced again?",
    ),
    "cleared": Advice(
        "jax.clear_caches makes the next calls compile again",
        "Leave it out; if memory grows, make the jitted functions once and give them few shapes.",
        "8.1.3 When is a function traced again?",
    ),
    "eager recompiles": Advice(
        "an operation outside of jit compiles again and again",
        "Jit the function around this line, and give it what varies as an argument.",
        "8.1.2 Computational performance",
    ),
    "eager shapes": Advice(
        "an operation outside of jit compiles for each shape",
        "Jit would compile for each shape just the same. Write into an array of the final size with "
        ".at[i].set; or pad to a few sizes and mask the rest; or use NumPy for what varies on the host.",
        "8.1.3 When is a function traced again?",
    ),
    "new body": Advice(
        "a loop outside of jit gets a new body in each call",
        "Put this call into a function under jax.jit, made once, whose arguments are what the body uses.",
        "8.1.3 When is a function traced again?",
    ),
    "debug setting": Advice(
        "a debug setting of JAX is on",
        "{name} is on, perhaps by {environment_name} in the environment; leave it on only while you look for "
        "a mistake.",
        "8.2.1 Asynchronous computation in JAX",
    ),
    "debug setting in a line": Advice(
        "a debug setting of JAX is on",
        "Leave it on only while you look for the mistake that it finds.",
        "8.2.1 Asynchronous computation in JAX",
    ),
}
