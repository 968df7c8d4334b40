"""The titles and changes of each advice, by the chapter's section and by cause; see `finding.Advice`."""

TEXTS: dict[str, dict[str, tuple[str, str]]] = {
    "8.2.2 Synchronization functions: making the front end wait": {
        "wait": (
            "the front end waits on each turn of a loop",
            "Keep the array in the loop, for which nobody waits, and fetch all of them once after it, with "
            "jax.device_get.",
        ),
        "element reads": (
            "elements of an array are read one by one",
            "Before the loop, bring {argument} to the host once, with numpy.asarray({argument}), and read "
            "the elements of that.",
        ),
        "wait in while": (
            "the front end waits on each turn of a loop",
            "Give jax.lax.while_loop the test and a turn as functions of the arrays, or test every tenth "
            "turn, so that the device has the next ones to do meanwhile.",
        ),
        "wait in if": (
            "the front end waits on each turn of a loop",
            "Choose with jnp.where, or with jax.lax.cond, which computes one side only.",
        ),
        "logging": (
            "logging waits for the device on each step",
            "Log every hundredth step (if step % 100 == 0). An f-string is formatted even if its level is "
            "off, log.debug('%s', x) is not.",
        ),
        "numpy": (
            "NumPy computes between two programs",
            "Do the same with jnp inside the jitted step: the values never leave the device.",
        ),
        "write": (
            "devices wait while a file is written",
            "Write less often (if step % 100 == 0), or behind the next steps: the CheckpointManager of "
            "orbax.checkpoint writes in threads of its own.",
        ),
        "wait for the next turn": (
            "the front end waits on each turn of a loop",
            "The next turn needs the value: let one wait serve many turns (a batch of them under jax.vmap), "
            "or write what needs it in jax.numpy, so that the whole loop is one program, with jax.lax.scan.",
        ),
        "wait for a test": (
            "the front end waits on each turn of a loop",
            "A test in the loop needs the value: start the next turn before it, and test what the turn "
            "before has given, or test every tenth turn.",
        ),
        "wait for what is returned": (
            "the front end waits on each turn of a loop",
            "If nothing needs the value before the loop ends, return the array itself, and fetch all of them "
            "once after it. If the next turn needs it, write what needs it in jax.numpy, so that many turns "
            "are one program, or let one wait serve many turns (a batch of them under jax.vmap).",
        ),
        "wait for large arrays": (
            "the front end waits on each turn of a loop",
            "Let a jitted function compute on the device what the host needs of them, such as an average or "
            "a norm, and fetch that; or fetch them every hundredth turn (if step % 100 == 0).",
        ),
        "needless wait": (
            "the front end waits on each turn of a loop",
            "Leave out {name} here, and wait once, after the loop.",
        ),
    },
    "8.3.2 Parallel computation and communication": {
        "data": (
            "devices wait for data",
            "Read the next batch in a thread during a step.",
        ),
        "slow data": (
            "devices wait for data",
            "Reading takes longer than the steps. If it computes, do that once before the loop, or for a "
            "whole batch with NumPy; what must stay Python goes into processes (grain, or torch's DataLoader "
            "with workers). If it waits for a disk or a network, let several threads read at once:",
        ),
        "transfer": (
            "large NumPy arrays are copied to the device on each call",
            "Call jax.device_put({argument}) once, or, where it varies, ahead of time for the next call.",
        ),
        "puts one by one": (
            "small arrays are put on devices one by one",
            "Give jax.device_put the whole dictionary or list, and one sharding that is made once.",
        ),
        "put again": (
            "the same array is copied to the device on each turn of a loop",
            "Copy it once, before the loop.",
        ),
        "put again in a function": (
            "the same array is copied to the device again and again",
            "Call this once for what does not change, before the loop, and keep the array.",
        ),
        "list": (
            "an array is made of Python's numbers on each turn of a loop",
            "JAX takes the numbers of a list one by one: before the loop, make one NumPy array of them all "
            "with np.array(..., np.float32), and give each turn its rows.",
        ),
    },
    "8.1.2 Computational performance": {
        "eager": (
            "operations are dispatched one by one",
            "Put this line and its neighbors into one jitted function; float() and print() stay outside.",
        ),
        "eager function": (
            "operations are dispatched one by one",
            "Jit {name} as a whole: @jax.jit above it (@nnx.jit or @eqx.filter_jit if it is given modules); "
            "float() and print() stay outside, an if on an array becomes jnp.where, and a loop over examples "
            "jax.vmap.",
        ),
        "eager generator": (
            "operations are dispatched one by one",
            "Put what this generator computes for each item into one jitted function, and yield its result.",
        ),
        "eager init": (
            "operations are dispatched one by one",
            "Make jax.jit({argument}) once, and call that here: one program in place of many small ones.",
        ),
        "eager method": (
            "operations are dispatched one by one",
            "Move what {name} computes with arrays into a function that takes the arrays and returns what "
            "changes of self, and jit that (in an nnx.Module, @nnx.jit above {name} does). float() and "
            "print() stay outside, an if on an array becomes jnp.where, and a loop over examples jax.vmap.",
        ),
        "constant work": (
            "a program computes the same in each call",
            "Compute it once, in a jitted function of its own, and pass the result to {name} as an argument.",
        ),
        "eager recompiles": (
            "an operation outside of jit compiles again and again",
            "Jit the function around this line, and give it what varies as an argument, unless it is a size.",
        ),
    },
    "8.2.4 The impact of asynchronous computation on memory": {
        "donation": (
            "an argument is copied that the result replaces",
            "Where {name} is jitted, give jax.jit donate_argnums or donate_argnames of the argument that the "
            "result replaces.",
        ),
        "donation of arguments": (
            "an argument is copied that the result replaces",
            "Jit {name} with {argument}: the result then takes the memory of what it replaces.",
        ),
        "eager copy": (
            "an array is copied to change a part of it",
            "Do so in a function under jax.jit with donate_argnums of the array, which then changes in "
            "place.",
        ),
        "module state": (
            "nnx.jit copies the state of a module in each call",
            "Jit {name} with {argument}: the module needs its old arrays no more, once it has the new ones.",
        ),
    },
    "Mixed precision": {
        "float64": (
            "float32 becomes float64",
            "Give the other operand the type of the data, as with .astype(np.float32).",
        ),
        "all float64": (
            "a program computes in float64",
            'If float32 is enough, make {argument} and all else that {name} gets .astype("float32").',
        ),
        "all float64 at a call": (
            "a program computes in float64",
            "If float32 is enough, give {name} arrays of that type, or leave jax_enable_x64 off.",
        ),
    },
    "8.1.3 What tracing forbids": {
        "unrolled": (
            "Python unrolls a loop while tracing",
            "Write the loop as jax.lax.fori_loop, or as jax.lax.scan over stacked weights or inputs.",
        ),
    },
    "8.1.2 Getting the symbolic program": {
        "constant": (
            "a large array is compiled into a program",
            "Put {argument} on the device once, with jax.device_put, and pass it to {name}, which only "
            "refers to it, as an argument. What {name} computes from it alone, compute once, and pass that.",
        ),
    },
    "8.2.1 Asynchronous computation in JAX": {
        "callback": (
            "the program stops for Python on the host",
            "Do the same with jnp or lax.",
        ),
        "debug callback": (
            "the program stops for Python on the host",
            "Leave it out where nobody reads it, or return the value, and print it after the call.",
        ),
        "debug setting": (
            "a debug setting of JAX is on",
            "{name} is on, perhaps by {environment_name} in the environment; leave it on only while you "
            "look for a mistake.",
        ),
        "debug setting in a line": (
            "a debug setting of JAX is on",
            "Leave it on only while you look for the mistake that it finds.",
        ),
    },
    "Committed and uncommitted arrays": {
        "on the cpu": (
            "a program runs on the CPU beside an accelerator",
            "Leave out device=cpu and jax.default_device, and give {name} arrays on the accelerator.",
        ),
    },
    "8.4.1 Data parallelism": {
        "shards": (
            "one device gets more work than the others",
            'Give all devices equal shares: jax.device_put(x, NamedSharding(mesh, P("data"))) over a '
            "jax.make_mesh of all of them.",
        ),
        "replicated": (
            "each device computes the whole batch",
            "Divide the batch, and give each device a copy of the rest: jax.device_put(batch, "
            'NamedSharding(mesh, P("data"))), with the name of the mesh\'s axis.',
        ),
        "moved": (
            "arrays are copied between devices on each call",
            "Before the loop, call jax.device_put once for them with the sharding that {name} needs: "
            'NamedSharding(mesh, P()) gives each device a copy, P("data") a share.',
        ),
    },
    "8.2.3 Using asynchronous computation to improve performance": {
        "dispatch": (
            "dispatching a step takes longer than computing it",
            "Make many steps one program, with jax.lax.scan if a step needs the one before, and with "
            "jax.vmap otherwise:",
        ),
        "module dispatch": (
            "nnx.jit takes modules apart in each call",
            "Bind {argument} to {name} once, before the loop, with nnx.cached_partial, and call the result "
            "in the loop without them. Or call nnx.split once, and jit a function of the state.",
        ),
        "python": (
            "Python between two steps keeps devices idle",
            "Do it less often (if step % 100 == 0), or all of it after the loop.",
        ),
        "python for the next step": (
            "Python between two steps keeps devices idle",
            "Dispatch what does not need this first, or make it part of the jitted step, so that the device "
            "has something to compute meanwhile.",
        ),
    },
    "8.1.3 When is a function traced again?": {
        "new function": (
            "a new function is jitted on each call",
            "Apply {wrapper} to {name} once, at the module's level or before the loop; what varies is an "
            "argument.",
        ),
        "new function of values": (
            "a new function is jitted on each call",
            "Apply {wrapper} to {name} once, at the module's level or before the loop, with {argument} as "
            "arguments.",
        ),
        "shape": (
            "an argument's shape varies",
            "Pad {argument}, and mask the rest in {name}, unless the size is part of the result:",
        ),
        "partial batch": (
            "the last batch is smaller and compiles a second program",
            "Give {name} full batches only: drop the last one, or pad it and mask the loss.",
        ),
        "static value": (
            "a static argument varies",
            "Make {argument} an ordinary argument of {name}, unless it is a size or a number of turns, and "
            "branch on it with jnp.where or lax.cond:",
        ),
        "static object": (
            "a static argument is a new object each time",
            "Make {argument} once, before the loop; or give {name} what it reads of it as ordinary "
            "arguments; or give its class __eq__ and __hash__, so that equal objects share a program.",
        ),
        "static part": (
            "a static part of an argument is a new object each time",
            "Make the {argument} of {name} once, before the loop, and give each new {name} the same object.",
        ),
        "placement": (
            "a function is compiled again for arguments that are placed in another way",
            "Place the arguments of {name} in one way before every call: all of them by jax.device_put with "
            "one device or sharding, which commits them to it, or none of them.",
        ),
        "dtype": (
            "an argument's dtype varies",
            "Give {name} one dtype on every call: jnp.asarray({argument}, jnp.float32).",
        ),
        "weak type": (
            "a Python number becomes an array after the first call",
            "Begin with an array of a dtype, before the first call of {name}: jnp.float32(0.1) in place of "
            "0.1, jnp.full(n, 0.1, jnp.float32) in place of jnp.full(n, 0.1).",
        ),
        "structure": (
            "an argument's structure varies",
            "Pass {name} the same keys and lengths on every call; None counts as another structure.",
        ),
        "cleared": (
            "jax.clear_caches makes the next calls compile again",
            "Leave it out; if memory grows, make the jitted functions once and give them few shapes.",
        ),
        "eager shapes": (
            "an operation outside of jit compiles for each shape",
            "Jit would compile for each shape just the same. Write into an array of the final size with "
            ".at[i].set; or pad to a few sizes and mask the rest; or, in place of x[mask], keep all elements "
            "with jnp.where(mask, x, 0); or use NumPy for what varies on the host.",
        ),
        "new body": (
            "a loop outside of jit gets a new body in each call",
            "Put this call into a function under jax.jit, made once, whose arguments are what the body uses.",
        ),
    },
}
