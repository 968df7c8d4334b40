import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxperf import hlo
from jaxperf.errors import JaxperfError

PROGRAMS = Path(__file__).parents[1] / "fixtures" / "programs"


def named(module, name):
    return next(i for i in module.instructions if i.name == name)


def test_bytes_and_names_of_dtypes():
    sizes = {"f32[2,3]": 24, "bf16[4]": 8, "pred[5]": 5, "s4[8]": 4, "s4[7]": 4, "f32[]": 4, "token[]": 0}
    for text, size in sizes.items():
        (shape,) = hlo.shapes_in(f"{text}{{0:T(8,128)S(1)}}")
        assert shape.bytes == size, text
    for dtype in ("float32", "bfloat16", "int4", "uint8", "complex64", "bool", "float8_e4m3fn"):
        shape = hlo.shape_of(f"{dtype}[3,4]")
        assert (hlo.dtype_name(shape.dtype), shape.dims) == (dtype, (3, 4))
    for described in ("3", "key<fry>[]", "f32[2]", "thing[2]", "float32[2]x", ""):
        assert hlo.shape_of(described) is None, described


def test_a_text_with_source_files():
    """As JAX 0.5.3 prints a scan with a gradient on a CPU: each instruction names its file and line."""
    module = hlo.parse((PROGRAMS / "source_file_jax_0_5_3.hlo").read_text())
    assert (module.name, module.entry) == ("jit_f", "main.70")
    assert module.aliases == {0: 0}
    assert module.layout == ((("f32", (8, 8)), ("bf16", (4, 8))), (("f32", (8, 8)),))
    loop, dot = named(module, "while.53"), named(module, "dot.11")
    assert (loop.called, loop.trips, len(loop.shapes), loop.operands) == ("body", 5, 5, ("tuple.17",))
    assert module.frames(dot) == (("/home/me/train.py", 3, ""),)
    assert (dot.operation, dot.computation, dot.root) == ("dot_general", "body", True)
    assert [i.name for i in module.operands(dot)] == ["x", "w"]
    assert {i.name: times for i, times in module.executed()}["dot.11"] == 5
    assert [i.number for i in module.instructions if i.opcode == "parameter"] == [0, 0, 1]
    assert named(module, "c").inside == "{1, 2}" and named(module, "c").bytes == 4


def test_a_text_with_tables_of_stack_frames():
    module = hlo.parse((PROGRAMS / "tables_jax_0_12.hlo").read_text())
    start = named(module, "y")
    assert start.collective == "all-reduce" and named(module, "z").collective == ""
    flax, train = ("/site-packages/flax/nnx.py", 77, "Dense.__call__"), ("/home/me/train.py", 9, "<module>")
    assert module.frames(start) == (flax, train)
    assert module.frames(named(module, "x")) == ()
    assert named(module, "i").branches == ("one", "two")
    assert module.layout[1] == (("f32", (4,)), ("s32", ()))
    assert module.aliases == {}


@pytest.mark.parametrize("text", ["", "module @jit_f {}", "HloModule x\n"])
def test_a_text_of_another_kind(text):
    with pytest.raises(JaxperfError, match="no ENTRY"):
        hlo.parse(text)


def compiled(fn, *args, **options):
    program = jax.jit(fn, **options).lower(*args).compile()
    return hlo.parse(program.as_text() or ""), program


def test_a_program_compiled_here():
    """All of it on this version of JAX: operands, loops, lines, dtypes, aliases and costs."""

    def step(w, x):
        def body(c, _):
            return jnp.tanh(c @ w), None

        return w + 1, jax.lax.scan(body, x, None, length=6)[0]

    w, x = jnp.ones((32, 32)), jnp.ones((16, 32))
    module, program = compiled(step, w, x, donate_argnums=0)
    (dot,) = [i for i in module.instructions if hlo.operation(i) == "dot"]
    line = step.__code__.co_firstlineno + 2
    assert [f.line for f in module.frames(dot) if f.file == __file__][:1] == [line]
    assert module.matrix_dtype == "float32"
    assert module.aliases == {0: 0}
    assert sorted(module.layout[0]) == [("f32", (16, 32)), ("f32", (32, 32))]
    # the loop may have been peeled or fused otherwise; its body still runs six times
    assert [i.trips for i in module.instructions if i.opcode == "while"] == [6]
    for each in module.instructions:
        if each.opcode not in ("parameter", "constant", "iota"):
            assert len(module.operands(each)) == len(each.operands), each.text
    costs = hlo.costs(program)
    assert costs.argument_bytes == w.nbytes + x.nbytes and costs.alias_bytes == w.nbytes
    assert costs.flops >= 2 * 16 * 32 * 32
    assert hlo.costs(program.runtime_executable())[2:] == costs[2:]


def test_every_line_of_a_program_with_a_convolution_is_read():
    x, k = jnp.ones((2, 8, 8, 4)), jnp.ones((3, 3, 4, 4))
    fn = jax.grad(lambda k: jnp.tanh(jax.lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))).sum())  # fmt: skip
    module, program = compiled(fn, k)
    lines = [line for line in program.as_text().splitlines() if re.match(r"\s+(ROOT )?%?[\w.-]+ = ", line)]
    assert [i.text for i in module.instructions] == lines
