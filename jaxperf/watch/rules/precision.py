"""The cost of dtypes: float64, bfloat16 that becomes float32, and matrix products of float32."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from jaxperf.hlo import Instruction, Shape, shape_of
from jaxperf.result.formatting import format_quantity
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.executables import PRODUCTS, Facts
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.observe.windows import ExecutedProgram
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules.programs import called_programs
from jaxperf.watch.rules.settings import set_at
from jaxperf.watch.rules.table import PRECISION, Cause, Finding, Form, find_causes, rule
from jaxperf.watch.source import statements

WIDE = ("float64", "double", "complex128")
WIDENED = 1 << 16  # bytes of an array below which its dtype does not matter
LARGE = 1 << 20  # bytes of float64 arguments that are worth reporting
WIDE_SHARE = 0.2  # share of the devices' time in float64 that is worth a note
PRODUCT_SHARE = 0.2  # share of a program's time in matrix products that is worth a note
_CARRYING = {  # instructions that compute nothing
    "broadcast", "constant", "copy", "dynamic-slice", "dynamic-update-slice", "fusion", "get-tuple-element",
    "parameter", "tuple", "while",
}  # fmt: skip
_PRODUCT = re.compile(r"^(?:dot|convolution)$|__cublas|__cudnn\$conv")
_HIGHEST = re.compile(r"operand_precision\W+\[?\W*highest", re.IGNORECASE)


FLOAT64 = Cause(
    "float64", "float64",
    "float32 becomes float64", PRECISION,
    Form(
        "Give the other operand the type of the data, as with .astype(np.float32)."
    ),
)  # fmt: skip
ALL_FLOAT64 = Cause(
    "all float64", "float64",
    "a program computes in float64", PRECISION,
    Form(
        'If float32 is enough, make {argument} and all else that {name} gets .astype("float32").'
    ),
    forms={
        "call": Form(
            "If float32 is enough, give {name} arrays of that type, or leave jax_enable_x64 off."
        ),
    },
    choose=lambda f: "" if f.argument else "call",
)  # fmt: skip


@rule(FLOAT64, ALL_FLOAT64)
def find_float64(analysis: Analysis) -> Iterator[Finding]:
    """Find programs that convert large arrays to float64, and those that take only float64 arrays."""
    for facts, c, _, program_s in called_programs(analysis):
        if lines := Counter(facts.at(i) for i in _widening(facts, ("f32[", "bf16[", "f16["), "f64[")):
            line = next((p for p, _ in lines.most_common() if p), c.at)
            reason = (
                f"{facts.name} turns float32 into float64 here, which moves twice the bytes from there on"
            )
            yield Finding("float64", line, program_s / 2, reason, facts.name)
        elif _only_wide(facts) and not any(map(_asks_for_float64, {p.file for p in (c.at, *c.callers)})):
            reason = (
                f"every array that {c.called} gets is float64, which JAX makes of its own and NumPy's "
                "arrays while jax_enable_x64 is on; if float32 is enough, it moves half of the bytes"
            )
            at, name = _made(c)
            yield Finding("all float64", at, program_s / 2, reason, facts.name, argument=name)


def _widening(facts: Facts, narrow: tuple[str, ...], wide: str) -> Iterator[Instruction]:
    """Yield the instructions that convert one of some types to a wider one, to `WIDENED` bytes or more."""
    names = {i.name for i in facts.instructions if i.type.startswith(narrow)}
    for i in facts.instructions:
        widens = i.opcode == "convert" and i.type.startswith(wide) and names & {*i.operands}
        if widens and i.shapes[0].bytes >= WIDENED:
            yield i


def _only_wide(facts: Facts) -> bool:
    """Return whether all float arguments of a program are float64 and large, and it computes with them."""
    floats = [shape for shape in facts.layout[0] if shape.dims and shape.dtype[0] in "fbc"]  # f32, bf16, c64
    if {shape.dtype for shape in floats} - {"f64", "c128"} or sum(shape.bytes for shape in floats) < LARGE:
        return False
    computed = (
        i for i in facts.instructions if i.opcode not in _CARRYING and i.type.startswith(("f64", "c128"))
    )
    return any(i.shapes[0].bytes >= WIDENED for i in computed)


@functools.cache
def _asks_for_float64(file: str) -> bool:
    """Return whether a file's code names float64, so that its use is intended."""
    for node in ast.walk(statements.syntax_tree(file)):
        named = getattr(node, "attr", "") or getattr(node, "id", "") or getattr(node, "value", "")
        if isinstance(node, ast.Attribute | ast.Name | ast.Constant) and named in WIDE:
            return True
    return False


def wide_notes(analysis: Analysis) -> Iterator[str]:
    """Yield a note if programs compute in float64 because another module than theirs turned that on."""
    at = set_at("jax_enable_x64", analysis, NOWHERE) if "jax_enable_x64" in analysis.record.settings else None
    if at is None:
        return
    wide = [
        (c, seconds)
        for facts, c, _, seconds in called_programs(analysis)
        if _computes_wide(facts) and not {at.file, *filter(_asks_for_float64, _files(c))} & {*_files(c)}
    ]
    found = any(finding.cause == "all float64" for finding in find_causes(analysis))
    if wide and not found and sum(seconds for _, seconds in wide) >= WIDE_SHARE * analysis.computing_s:
        names = ", ".join(dict.fromkeys(c.called for c, _ in wide))
        yield (
            f"{names} computes in float64, since {at} turns on jax_enable_x64 ({at.source}); float32 takes "
            "about half of the time where its precision serves"
        )


def _files(c: Compiled) -> set[str]:
    return {p.file for p in (c.at, *c.callers)}


def _computes_wide(facts: Facts) -> bool:
    """Return whether a program computes large arrays of float64."""
    return any(
        shape.bytes >= LARGE
        for i in facts.instructions
        if i.opcode not in _CARRYING and i.type.startswith(("f64", "c128"))
        for shape in i.shapes[:1]
    )


def _made(c: Compiled) -> tuple[Place, str]:
    """Return the line that assigns the largest argument, and its variable; else the call and ""."""
    arrays = {where: array for where, text in c.signature.items() if (array := shape_of(text))}
    sizes = {where: shape.size for where, shape in arrays.items()}
    largest = max(sizes, key=lambda where: sizes[where], default="")
    expression = statements.argument_expression(c.at, c.called, largest) if largest else None
    if not isinstance(expression, ast.Name):
        return c.at, ""
    within = statements.innermost(c.at, ast.FunctionDef) or statements.syntax_tree(c.at.file)
    lines = [
        n.lineno
        for n in ast.walk(within)
        if isinstance(n, ast.Assign) and n.lineno < c.at.line and expression.id in map(ast.unparse, n.targets)
    ]
    return (c.at._replace(line=max(lines)), expression.id) if lines else (c.at, "")


def widened_lines(facts: Facts) -> dict[Place, int]:
    """Return the lines at which an operator converts bfloat16 to float32, with the bytes of the array.

    JAX does so if the other operand is float32. Intended conversions, as by `astype` and `mean`, are calls
    rather than operators.
    """
    lines: dict[Place, int] = {}
    products: dict[Place, int] = {}
    for i in _widening(facts, ("bf16[",), "f32["):
        at = facts.at(i)
        if not i.operation or not at or not _is_operator(at):
            continue
        if i.operation in PRODUCTS:
            products[at] = products.get(at, 0) + 1
        if i.operation in ("convert_element_type", *PRODUCTS):
            lines[at] = max(lines.get(at, 0), Shape("bf16", i.shapes[0].dims).bytes)
    return {at: size for at, size in lines.items() if products.get(at, 1) == 1}  # 2: both were bfloat16


def _is_operator(at: Place) -> bool:
    """Return whether a statement uses operators, and no function that converts on purpose."""
    statement = statements.innermost(at, ast.stmt)
    nodes = list(ast.walk(statement)) if statement else []
    names = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    names |= {str(n.value) for n in nodes if isinstance(n, ast.Constant)}
    operators = any(isinstance(n, ast.BinOp | ast.AugAssign) for n in nodes)
    return operators and not names & {"astype", "float32", "mean", "sum", "var", "std"}


def precision_notes(facts: Facts, c: Compiled, program: ExecutedProgram) -> Iterator[str]:
    """Yield a note for each place where a program computes in a wider dtype than it may need."""
    for at, size in sorted(widened_lines(facts).items(), key=lambda item: -item[1])[:3]:
        yield (
            f"bfloat16 becomes float32 at {at}, as the other operand is float32: {c.called} then moves twice "
            f"the bytes of an array of {format_quantity(size, 'bytes')} and all that comes from it. Give the "
            "other operand .astype(jnp.bfloat16) if that is precise enough"
        )
    if facts.platform not in ("cpu", "tpu"):
        yield from _products(facts, c, program)


def _products(facts: Facts, c: Compiled, program: ExecutedProgram) -> Iterator[str]:
    """Yield notes on the share of a GPU's time in products of float32 matrices."""
    types = {i.name: i.type for i in facts.instructions}
    wide = [i for i in facts.instructions if _is_product(i) and _takes(i, "f32[", types)]
    for full in (True, False):
        chosen = [i for i in wide if bool(_HIGHEST.search(i.text)) == full]
        inside = {i.computation for i in chosen}
        callers = {i.name for i in facts.instructions if any(f"calls=%{name}," in i.text for name in inside)}
        products_s = program.op_s({*callers, *(i.name for i in chosen)}.__contains__)
        total_s = program.op_s(facts.steps.__contains__)
        if not chosen or not total_s or products_s < PRODUCT_SHARE * total_s:
            continue
        at = next((at for i in chosen if (at := facts.at(i))), c.at)
        share = f"{products_s / total_s:.0%} of {c.called}'s time goes to products of float32 matrices ({at})"
        yield (
            f"{share} at the highest precision: jax.default_matmul_precision('tensorfloat32') lets the GPU "
            "take TensorFloat32, with 10 bits of mantissa in place of 23"
            if full
            else f"{share}: in bfloat16 they take half of the bytes, and a GPU computes them faster than in "
            "TensorFloat32"
        )


def _takes(i: Instruction, dtype: str, types: Mapping[str, str]) -> bool:
    """Return whether an instruction's first operand has a type; the result's may be wider."""
    return types.get(next(iter(i.operands), ""), "").startswith(dtype)


def _is_product(i: Instruction) -> bool:
    if i.opcode == "custom-call":
        return bool(_PRODUCT.search(i.target))
    return bool(_PRODUCT.search(i.opcode))
