"""What to change for each cause: a snippet with the program's own names, and the section that explains it."""

from __future__ import annotations

from dataclasses import dataclass

from jaxperf.watching.finding import Finding


@dataclass(frozen=True)
class Advice:
    """`title` names the cause in the reader's words; lines of `change` begin with - or + as in a diff."""

    title: str
    change: str
    section: str


_TEXTS = {
    "new function": Advice(
        "a new function is jitted on each call",
        """
        - {line}
        + {name} = jax.jit(...)      # once, outside of the loop; what varies is an argument
        + ... = {name}(...)          # in the loop
        """,
        "8.1.3 What traces again",
    ),
    "shape": Advice(
        "an argument's shape varies",
        """
        - {line}
        + size = 1 << (len(x) - 1).bit_length()              # a few sizes in place of many
        + x = np.pad(x, [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1))
        + ... = {name}(x, valid)     # and mask with jnp.arange(size) < valid inside
        """,
        "8.1.3 What traces again",
    ),
    "partial batch": Advice(
        "the last batch is smaller and compiles a second program",
        """
        - {line}
        + # give {name} full batches only: drop the last one, or pad it and mask the loss
        + for start in range(0, len(x) - batch + 1, batch):
        """,
        "8.1.3 What traces again",
    ),
    "static value": Advice(
        "a static argument varies",
        """
        - {line}
        + @jax.jit                   # no static_argnames for what changes with each call
        + def {name}(...)            # branch on it with jnp.where or lax.cond
        """,
        "8.1.3 What traces again",
    ),
    "dtype": Advice(
        "an argument's dtype varies",
        """
        - {line}
        + {name}(jnp.asarray(x, jnp.float32), ...)   # one dtype on every call
        """,
        "8.1.3 What traces again",
    ),
    "weak type": Advice(
        "a Python number becomes an array after the first call",
        """
        - value = 0.1
        + value = jnp.float32(0.1)   # before the first call: {line}
        """,
        "8.1.3 What traces again",
    ),
    "structure": Advice(
        "an argument's structure varies",
        """
        - {line}
        + # pass {name} the same keys and lengths on every call; None counts as another structure
        """,
        "8.1.3 What traces again",
    ),
    "eager recompiles": Advice(
        "an operation outside of jit compiles again and again",
        """
        - {line}
        + # jit the function around this line, or use NumPy for shapes that vary on the host
        """,
        "8.1.2 Performance",
    ),
    "wait": Advice(
        "the front end waits on each turn of a loop",
        """
        - {line}
        + values.append(value)                # an array: nobody waits
        + values = jax.device_get(values)     # once, after the loop
        """,
        "8.2.2 Making the front end wait",
    ),
    "logging": Advice(
        "logging waits for the device on each step",
        """
        - {line}
        + if step % 100 == 0:
        +     {line}
        """,
        "8.2.2 Making the front end wait",
    ),
    "data": Advice(
        "devices wait for data",
        """
        + pool = ThreadPoolExecutor(4)        # read ahead while the device computes
        + coming = deque(pool.submit(read, i) for i in range(4))
        - {line}
        + while coming:
        +     x = coming.popleft().result()   # and submit the next one
        """,
        "8.3.2 Computing and copying",
    ),
    "numpy": Advice(
        "NumPy computes between two programs",
        """
        - {line}
        + # the same with jnp inside the jitted step: the values never leave the device
        """,
        "8.2.2 Making the front end wait",
    ),
    "transfer": Advice(
        "large NumPy arrays are copied to the device on each call",
        """
        + x = jax.device_put(x)      # once if it stays the same; else the next batch before it is needed
          {line}
        """,
        "8.3.2 Computing and copying",
    ),
    "eager": Advice(
        "operations are dispatched one by one",
        """
        + @jax.jit
          def {name}(...):
              {line}
        """,
        "8.1.2 Performance",
    ),
    "donation": Advice(
        "an argument is copied that the result replaces",
        """
        - @jax.jit
        + @functools.partial(jax.jit, donate_argnums=0)   # the position of what the result replaces
          def {name}(...)
        """,
        "8.2.4 What asynchronous computation costs in memory",
    ),
    "float64": Advice(
        "float32 becomes float64",
        """
        - {line}
        + # give the other operand the type of the data: .astype(np.float32)
        """,
        "Mixed precision",
    ),
    "unrolled": Advice(
        "Python unrolls a loop while tracing",
        """
        - for i in range(n): {line}
        + x = jax.lax.fori_loop(0, n, lambda i, x: ..., x)   # or lax.scan over stacked weights
        """,
        "8.1.3 What tracing forbids; exercise 2: if and for",
    ),
    "callback": Advice(
        "the program stops for Python on the host",
        """
        - {line}
        + # the same with jnp or lax; jax.debug.print only where somebody reads it
        """,
        "8.2.1 Front end and back end",
    ),
    "on the cpu": Advice(
        "a program runs on the CPU beside an accelerator",
        """
        - {line}
        + # leave out device=cpu and jax.default_device, and give it arrays on the accelerator
        """,
        "Arrays on devices",
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
_OTHER = Advice(
    "it was traced again",
    "- {line}\n+ # keep what the reason names the same on every call",
    "8.1.3 What traces again",
)


def advice(finding: Finding) -> Advice:
    """What to change, with the finding's own line and names."""
    found = _TEXTS.get(finding.cause, _OTHER)
    lines = [row.removeprefix(" " * 8) for row in found.change.strip("\n").splitlines()]
    name = finding.name.removeprefix("jit_")
    filled = "\n".join(lines).rstrip().replace("{name}", name).replace("{line}", finding.at.source or "...")
    return Advice(found.title, filled, found.section)
