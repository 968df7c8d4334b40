"""What to change about the front end's work between steps; `advice.advice` chooses among the texts."""

from __future__ import annotations

from jaxperf.watch.finding import Advice

TEXTS = {
    "moved": Advice(
        "arrays are copied between devices on each call",
        "Before the loop, call jax.device_put once for them with the sharding that {name} needs: "
        'NamedSharding(mesh, P()) gives each device a copy, P("data") a share.',
        "8.4.1 Data parallelism",
    ),
    "puts one by one": Advice(
        "small arrays are put on devices one by one",
        "Give jax.device_put the whole dictionary or list, and one sharding that is made once.",
        "8.3.2 Parallel computation and communication",
    ),
    "dispatch": Advice(
        "dispatching a step takes longer than computing it",
        "",
        "8.2.3 Using asynchronous computation to improve performance",
    ),
    "module dispatch": Advice(
        "nnx.jit takes modules apart in each call",
        "Bind {argument} to {name} once, before the loop, with nnx.cached_partial, and call the result in "
        "the loop without them. Or call nnx.split once, and jit a function of the state.",
        "8.2.3 Using asynchronous computation to improve performance",
    ),
    "python": Advice(
        "Python between two steps keeps devices idle",
        "Do it less often (if step % 100 == 0), or all of it after the loop.",
        "8.2.3 Using asynchronous computation to improve performance",
    ),
    "python for the next step": Advice(
        "Python between two steps keeps devices idle",
        "Dispatch what does not need this first, or make it part of the jitted step, so that the device has "
        "something to compute meanwhile.",
        "8.2.3 Using asynchronous computation to improve performance",
    ),
    "write": Advice(
        "devices wait while a file is written",
        "Write less often (if step % 100 == 0), or behind the next steps: the CheckpointManager of "
        "orbax.checkpoint writes in threads of its own.",
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "put again": Advice(
        "the same array is copied to the device on each turn of a loop",
        "Copy it once, before the loop.",
        "8.3.2 Parallel computation and communication",
    ),
    "wait for the next turn": Advice(
        "the front end waits on each turn of a loop",
        "The next turn needs the value: let one wait serve many turns (a batch of them under jax.vmap), or "
        "write what needs it in jax.numpy, so that the whole loop is one program, with jax.lax.scan.",
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "put again in a function": Advice(
        "the same array is copied to the device again and again",
        "Call this once for what does not change, before the loop, and keep the array.",
        "8.3.2 Parallel computation and communication",
    ),
    "list": Advice(
        "an array is made of Python's numbers on each turn of a loop",
        "JAX takes the numbers of a list one by one: before the loop, make one NumPy array of them all with "
        "np.array(..., np.float32), and give each turn its rows.",
        "8.3.2 Parallel computation and communication",
    ),
    "needless wait": Advice(
        "the front end waits on each turn of a loop",
        "Leave out {name} here, and wait once, after the loop.",
        "8.2.2 Synchronization functions: making the front end wait",
    ),
}
