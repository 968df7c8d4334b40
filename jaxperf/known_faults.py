"""Known faults of JAX versions: programs that became slower, larger or wrong, each with its public issue.

One table for `watch`, `doctor`, `upgrade` and the page on versions. A fault whose programs can be told from
their compiled form has a pattern, which finds the instructions that it hits. If it was fixed before 0.8.2 it
has none, since `watch` names no causes there. Nothing here imports JAX.
"""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jaxperf.hlo import Instruction, Module

Pattern = Callable[[Module], Iterator[Instruction]]
SMALL_UPDATE = 256  # bytes, from which on jaxlib 0.11.1 updates in place (jax#40101)
LARGE_ARRAY = 16 << 10  # bytes, below which rewriting an array costs no more than an update
RANKS_OF_YNN = 7  # from which on YNNPACK's transposed operands have too many dimensions (jax#39257)
NO_YNN = 'XLA_FLAGS="--xla_cpu_experimental_ynn_fusion_type="'
ROWS_RIGHT = 16_384  # of a product with a small matrix, up to which jaxlib 0.10.2 is right (jax#39103)


@dataclass(frozen=True)
class Fault:
    name: str  # what is affected, in a few words
    issue: str  # the public issues
    platforms: tuple[str, ...]  # "cpu", "gpu", "tpu"
    first: str  # the first affected version of jaxlib; "" if it is older than 0.5
    fixed: str  # the first version without it; "" if none is known
    symptom: str
    factor: float  # how many times longer it takes, as reported or measured; 0 if it is not about time
    way_out: str
    pattern: Pattern | None = None  # yields the instructions that it hits; None if no text shows it
    card: str = ""  # the GPU's name must contain this; "" for all
    probe: str = ""  # the probe of benchmarks/versions that shows it on a CPU; "" for none

    @property
    def versions(self) -> str:
        if not self.first and not self.fixed:
            return "all"
        if not self.fixed:
            return f"{self.first} and later"
        return f"{self.first} to before {self.fixed}" if self.first else f"before {self.fixed}"

    def in_version(self, version: str) -> bool:
        numbers = release(version)
        return release(self.first) <= numbers and (not self.fixed or numbers < release(self.fixed))

    def hits(self, module: Module) -> list[Instruction]:
        return list(self.pattern(module)) if self.pattern else []

    @property
    def text(self) -> str:
        return f"{self.name}: {self.symptom} ({self.issue}); {self.way_out}"


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version without its suffix, for comparison: (0, 11, 1) for "0.11.1.dev2"."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", version)[0]))


def faults_of(version: str, platform: str, device_kind: str = "") -> list[Fault]:
    """Return the faults of a jaxlib on a platform ("cpu", "gpu" or "cuda", "tpu") and its device."""
    named = "gpu" if platform in ("cuda", "rocm") else platform
    faults = (fault for fault in FAULTS if fault.in_version(version) and named in fault.platforms)
    return [fault for fault in faults if fault.card in device_kind.lower().replace(" ", "")]


# --- patterns


def _root(module: Module, instruction: Instruction) -> Instruction:
    """Return what an instruction computes last: in a fusion its root, else itself."""
    if instruction.opcode != "fusion":
        return instruction
    return next((i for i in module.inside(instruction) if i.root), instruction)


def small_updates_in_loops(module: Module) -> Iterator[Instruction]:
    """Yield the updates of less than 256 bytes of a large array, also those with which fusions end."""
    for loop in (i for i in module.instructions if i.opcode == "while"):
        for update in (_root(module, i) for i in module.inside(loop)):
            if update.opcode == "dynamic-update-slice" and update.bytes >= LARGE_ARRAY:
                shapes = module.operand_shapes(update)
                if len(shapes) > 1 and shapes[1].bytes < SMALL_UPDATE:
                    yield update


def ynn_sums(module: Module) -> Iterator[tuple[Instruction, list[Instruction]]]:
    """Yield the fusions of YNNPACK that sum, and the sums in them."""
    for fusion in module.instructions:
        if fusion.opcode == "fusion" and '"__ynn_fusion"' in fusion.attributes:
            sums = [i for i in module.inside(fusion) if i.opcode == "reduce"]
            if sums:
                yield fusion, sums


def products_of_many_rows(module: Module) -> Iterator[Instruction]:
    for fusion, _ in ynn_sums(module):
        for i in module.inside(fusion):
            if i.opcode == "dot" and any(max(s.dims, default=0) > ROWS_RIGHT for s in i.shapes):
                yield i


def reductions_of_high_rank(module: Module) -> Iterator[Instruction]:
    for _, sums in ynn_sums(module):
        for i in sums:
            if any(len(s.dims) >= RANKS_OF_YNN for s in module.operand_shapes(i)):
                yield i


def reductions_of_stored_slices(module: Module) -> Iterator[Instruction]:
    """Yield a sum in each fusion of YNNPACK whose operands are slices that are stored first."""
    for fusion, sums in ynn_sums(module):
        large = (i for i in module.operands(fusion) if i.bytes >= LARGE_ARRAY)
        if any(_root(module, i).opcode == "slice" for i in large):
            yield sums[0]


def shifted_in_place(module: Module) -> Iterator[Instruction]:
    """Yield updates in a fusion whose update is a slice of the array that they change."""
    fusions = (i for i in module.instructions if i.opcode == "fusion")
    for i in (part for fusion in fusions for part in module.inside(fusion)):
        parts = module.operands(i) if i.opcode == "dynamic-update-slice" else []
        if len(parts) < 2:
            continue
        changed, update = (_behind_views(module, part) for part in parts[:2])
        # Only where the array is seen in another shape does it go wrong
        if update.opcode != "slice" or changed is parts[0]:
            continue
        if _behind_views(module, module.operands(update)[0]) is changed:
            yield i


def _behind_views(module: Module, instruction: Instruction) -> Instruction:
    while instruction.opcode in ("bitcast", "reshape", "copy") and module.operands(instruction):
        instruction = module.operands(instruction)[0]
    return instruction


def additions(module: Module, dtype: str) -> Iterator[Instruction]:
    """Yield additions into an array of a dtype at indices that may be equal."""
    scatters = (i for i in module.instructions if i.opcode == "scatter" and i.shapes[0].dtype == dtype)
    for i in scatters:
        if "unique_indices=true" not in i.text and any(each.opcode == "add" for each in module.inside(i)):
            yield i


# --- the table

FAULTS = (
    Fault(
        "a small update of a large array in a loop", "jax-ml/jax#40101", ("cpu",), "0.11.1", "0.11.2",
        "each iteration rewrites the whole array", 37_000,
        "take jaxlib 0.11.0 or 0.11.2, or write chunks of 256 bytes or more",
        small_updates_in_loops, probe="path_written_in_a_loop",
    ),
    Fault(
        "an update of an array in a loop with an inner loop", "jax-ml/jax#31284", ("cpu",), "0.7.1", "0.7.2",
        "each iteration copies the whole array", 35, "take jaxlib 0.7.0 or 0.7.2",
        probe="random_reads_in_a_loop",
    ),
    Fault(
        "a product with a small matrix, summed, for many rows", "jax-ml/jax#39103", ("cpu",),
        "0.10.2", "0.11.0", "some rows are wrong", 0, f"take jaxlib 0.10.1 or 0.11, or set {NO_YNN}",
        products_of_many_rows, probe="products_of_rows",
    ),
    Fault(
        "a product and a sum of arrays of rank 7 or more", "jax-ml/jax#39257, jax-ml/jax#40412", ("cpu",),
        "0.10.2", "0.11.1", "the process ends by SIGSEGV, or hangs, on x86-64", 0,
        f"take jaxlib 0.10.1 or 0.11.1, or set {NO_YNN}",
        reductions_of_high_rank, probe="reduction_of_rank_7",
    ),
    Fault(
        "a sum of values computed from slices", "jax-ml/jax#37465", ("cpu",), "0.10.2", "",
        "YNNPACK sums, and the slices are stored before", 2,
        'try XLA_FLAGS="--xla_cpu_experimental_ynn_fusion_type=-reduce" in the environment',
        reductions_of_stored_slices, probe="squares_of_differences",
    ),
    Fault(
        "exp of NaN in float64", "jax-ml/jax#29537", ("cpu",), "0.6.2", "0.7.0",
        "a jitted exp of NaN is a number near 0", 0, "take jaxlib 0.6.1 or 0.7", probe="exponential_of_nan",
    ),
    Fault(
        "rows of an array shifted within it, and reshaped", "openxla/xla#49176", ("cpu",), "", "",
        "the update may read what it has just written, and the values are wrong", 0,
        "shift with jnp.roll or jnp.concatenate instead", shifted_in_place, probe="rows_shifted_in_place",
    ),
    Fault(
        "contractions of arrays of rank above 8", "openxla/xla#41173, jax-ml/jax#35646, jax-ml/jax#35958",
        ("cpu",), "0.9.1", "0.10.0", "compiling hangs or runs out of memory", 0, "take jaxlib 0.9.0 or 0.10",
        probe="contraction_of_high_rank",
    ),
    Fault(
        "contractions of arrays of rank above 8, again", "openxla/xla#41173", ("cpu",), "0.11.1", "0.12",
        "compiling hangs, as with 0.9.1; measured by this project, and not reported", 0,
        "take jaxlib 0.11.0 or 0.12", probe="contraction_of_high_rank",
    ),
    Fault(
        "the gradient of a scan over many scalars", "jax-ml/jax#40150", ("cpu",), "", "0.12",
        "each of the thousands of operations of an iteration is dispatched by itself", 60,
        "take jaxlib 0.12, or stack the scalars of the carry into one array",
        probe="gradient_of_scan_over_scalars",
    ),
    Fault(
        "many operations on small arrays", "jax-ml/jax#26021, jax-ml/jax#25190", ("cpu",), "", "",
        "each operation is dispatched by itself, since 0.4.32", 3,
        "stack small arrays, and give jax.lax.scan unroll=", probe="many_small_operations",
    ),
    Fault(
        "exp in float64", "jax-ml/jax#26145", ("cpu",), "", "0.6.0",
        "exp is computed one number at a time", 5, "take jaxlib 0.6 or later, or float32",
        probe="exponential_in_float64",
    ),
    Fault(
        "a scan over small matrices in float64, or many small solves", "jax-ml/jax#36799", ("cpu",),
        "", "0.6.0", "each product is dispatched by itself", 10, "take jaxlib 0.6 or later",
        probe="scan_over_a_small_float64_matrix",
    ),
    Fault(
        "tracing", "vllm-project/tpu-inference#2949", ("cpu", "gpu", "tpu"), "0.10.1", "0.10.2",
        "tracing and lowering take up to twice as long (a fault of jax)", 2, "take jax 0.10.0 or 0.10.2",
        probe="tracing_of_many_operations",
    ),
    Fault(
        "x.at[i].add(y) in float32", "jax-ml/jax#38806, openxla/xla#46225, pyro-ppl/numpyro#2225", ("gpu",),
        "0.10.2", "0.11.1",
        "additions at equal indices are a compare-and-swap loop; so are gradients of an embedding", 2000,
        "take jaxlib 0.11.1 or later", functools.partial(additions, dtype="f32"),
    ),
    Fault(
        "x.at[i].add(y) in bfloat16", "openxla/xla#26371", ("gpu",), "", "",
        "additions at equal indices are a compare-and-swap loop", 10, "add in float32",
        functools.partial(additions, dtype="bf16"), card="a100",
    ),
    Fault(
        "segment_sum under vmap", "jax-ml/jax#39959", ("gpu",), "0.9.2", "",
        "the result's layout makes neighbors write far apart", 5, "map over the last axis (out_axes=1)",
        probe="segment_sum",
    ),
    Fault(
        "eager operations on an RTX A6000", "jax-ml/jax#40633", ("gpu",), "0.11.0", "",
        "operations outside jit return wrong values", 0, "take jaxlib 0.10.2", card="a6000",
    ),
    Fault(
        "memory of a training with a mixture of experts", "marin-community/marin#5394", ("gpu",), "0.9.2", "",
        "temporary memory is 3.6 times as large as with 0.8.0", 0,
        "compare temporary memory before you upgrade", card="h100",
    ),
)  # fmt: skip
