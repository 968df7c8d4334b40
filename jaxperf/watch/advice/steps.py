"""What to change about the front end's work from one step to the next; see `advice`."""

from __future__ import annotations

from jaxperf.watch.finding import Advice

TEXTS = {
    "puts one by one": Advice(
        "small arrays are put on devices one by one",
        """
        - {line}
        + # give jax.device_put the whole dictionary or list, and one sharding that is made once:
        + batch = jax.device_put(batch, sharding)
        """,
        "8.3.2 Parallel computation and communication",
    ),
    "dispatch": Advice(
        "dispatching a step takes longer than computing it",
        """
          {line}
        + # several of these calls in one program: jax.lax.scan or jax.lax.fori_loop over turns that need the
        + # one before, jax.vmap over turns that do not
        """,
        "8.2.3 Using asynchronous computation to improve performance",
    ),
    "python": Advice(
        "Python between two steps keeps devices idle",
        """
        - {line}
        + if step % 100 == 0:          # less often; or all of it after the loop
        +     {line}
        """,
        "8.2.3 Using asynchronous computation to improve performance",
    ),
    "python for the next step": Advice(
        "Python between two steps keeps devices idle",
        """
          {line}
        + # dispatch what does not need this first, or make it part of the jitted step, so that the device has
        + # something to compute meanwhile
        """,
        "8.2.3 Using asynchronous computation to improve performance",
    ),
    "write": Advice(
        "devices wait while a file is written",
        """
        - {line}
        + if step % 100 == 0:          # less often
        +     {line}
        + # or behind the next steps: the CheckpointManager of orbax.checkpoint writes in threads of its own
        """,
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "put again": Advice(
        "the same array is copied to the device on each turn of a loop",
        """
        - {line}
        + # before the loop, once:
        + {line}
        """,
        "8.3.2 Parallel computation and communication",
    ),
    "wait for the next turn": Advice(
        "the front end waits on each turn of a loop",
        """
          {line}
        + # the next turn needs the value: let one wait serve many turns (a batch of them under jax.vmap), or
        + # write what needs it in jax.numpy, so that the whole loop is one program, with jax.lax.scan
        """,
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "put again in a function": Advice(
        "the same array is copied to the device again and again",
        """
          {line}
        + # call this once for what does not change, before the loop, and keep the array
        """,
        "8.3.2 Parallel computation and communication",
    ),
    "list": Advice(
        "an array is made of Python's numbers on each turn of a loop",
        """
        - {line}
        + # JAX takes the numbers of a list one by one: before the loop, make one NumPy array of them all with
        + # np.array(..., np.float32), and give each turn its rows
        """,
        "8.3.2 Parallel computation and communication",
    ),
    "needless wait": Advice(
        "the front end waits on each turn of a loop",
        """
        - {line}
        + # leave out {name} here, and wait once, after the loop
        """,
        "8.2.2 Synchronization functions: making the front end wait",
    ),
}
