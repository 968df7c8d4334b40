"""What to change about what is traced and compiled again; see `advice`."""

from __future__ import annotations

from jaxperf.watch.finding import Advice

TEXTS = {
    "new function": Advice(
        "a new function is jitted on each call",
        """
        - {line}
        + {name} = {jit}(...)      # once, outside of the loop; what varies is an argument
        + result = {name}({argument})   # in the loop
        """,
        "8.1.3 When is a function traced again?",
    ),
    "shape": Advice(
        "an argument's shape varies",
        """
        - {line}
        + valid = len({argument})
        + size = 1 << (valid - 1).bit_length()              # a few sizes in place of many
        + {argument} = np.pad({argument}, [(0, size - valid)] + [(0, 0)] * ({argument}.ndim - 1))
        + result = {name}({argument}, valid)  # and mask with jnp.arange(size) < valid inside
        """,
        "8.1.3 When is a function traced again?",
    ),
    "partial batch": Advice(
        "the last batch is smaller and compiles a second program",
        """
        - {line}
        + # give {name} full batches only: drop the last one, or pad it and mask the loss
        + for start in range(0, len(x) - batch + 1, batch):
        +     result = {name}(x[start : start + batch])
        """,
        "8.1.3 When is a function traced again?",
    ),
    "static value": Advice(
        "a static argument varies",
        """
        - @functools.partial(jax.jit, static_argnames=...)
        + @jax.jit                   # what changes with each call is an ordinary argument
          {def}
              ...                    # branch on it with jnp.where or lax.cond
          {line}
        """,
        "8.1.3 When is a function traced again?",
    ),
    "static object": Advice(
        "a static argument is a new object each time",
        """
          {line}
        + # give {name} what it reads of the object as ordinary arguments, and make only what decides its
        + # structure static; or make the object once; or give its class __eq__ and __hash__, so that equal
        + # objects share a program
        """,
        "8.1.3 When is a function traced again?",
    ),
    "static part": Advice(
        "a static part of an argument is a new object each time",
        """
          {line}
        + # make the {argument} of {name} once, before the loop, and give each new {name} the same object
        """,
        "8.1.3 When is a function traced again?",
    ),
    "placement": Advice(
        "a function is compiled again for arguments that are placed in another way",
        """
          {line}
        + # put the arguments on their devices in one way before every call: all of them by jax.device_put
        + # with one device or sharding, which commits them to it, or none of them
        """,
        "8.1.3 When is a function traced again?",
    ),
    "dtype": Advice(
        "an argument's dtype varies",
        """
        - {line}
        + {name}(jnp.asarray({argument}, jnp.float32), ...)   # one dtype on every call
        """,
        "8.1.3 When is a function traced again?",
    ),
    "weak type": Advice(
        "a Python number becomes an array after the first call",
        """
        - value = 0.1
        + value = jnp.float32(0.1)   # before the first call
          {line}
        """,
        "8.1.3 When is a function traced again?",
    ),
    "structure": Advice(
        "an argument's structure varies",
        """
        - {line}
        + # pass {name} the same keys and lengths on every call; None counts as another structure
        """,
        "8.1.3 When is a function traced again?",
    ),
    "cleared": Advice(
        "jax.clear_caches makes the next calls compile again",
        """
        - {line}
        + # leave it out; if memory grows, make the jitted functions once and give them few shapes
        """,
        "8.1.3 When is a function traced again?",
    ),
    "eager recompiles": Advice(
        "an operation outside of jit compiles again and again",
        """
        - {line}
        + # jit the function around this line, and give it what varies as an argument
        """,
        "8.1.2 Computational performance",
    ),
    "eager shapes": Advice(
        "an operation outside of jit compiles for each shape",
        """
        - {line}
        + # jit would compile for each shape just the same. Write into an array of the final size with
        + # .at[i].set; or pad to a few sizes and mask the rest; or use NumPy for what varies on the host
        """,
        "8.1.3 When is a function traced again?",
    ),
    "new body": Advice(
        "a loop outside of jit gets a new body in each call",
        """
        - {line}
        + # put the call into a function under jax.jit, made once, whose arguments are what the body uses
        """,
        "8.1.3 When is a function traced again?",
    ),
    "debug setting": Advice(
        "a debug setting of JAX is on",
        """
          {line}
        + # {name} is on, perhaps by {NAME} in the environment; leave it on only while you look for a mistake
        """,
        "8.2.1 Asynchronous computation in JAX",
    ),
    "debug setting in a line": Advice(
        "a debug setting of JAX is on",
        """
        - {line}
        + # only while you look for the mistake that it finds
        """,
        "8.2.1 Asynchronous computation in JAX",
    ),
}
