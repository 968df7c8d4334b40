from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from jaxperf.measure.stages import all_equations, count_ops, describe_program


def program(fn, *args, **options):
    traced = jax.jit(fn, **options).trace(*args)
    return describe_program(traced, traced.lower().compile())


def test_convolutions_are_counted():
    def net(x, kernels):
        layout = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        for kernel in kernels:
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", **layout)
        return x

    for layers in (1, 2):
        compiled = program(net, jnp.ones((2, 8, 8, 4)), [jnp.ones((3, 3, 4, 4))] * layers)
        assert (compiled.convolutions, compiled.dots) == (layers, 0)


def test_a_matrix_product_is_two_flops_per_inner_step():
    for m, k, n in ((64, 128, 32), (1, 512, 256)):
        compiled = program(lambda a, b: a @ b, jnp.ones((m, k)), jnp.ones((k, n)))
        assert compiled.flops == 2 * m * n * k
        assert compiled.bytes_accessed >= 4 * (m * k + k * n + m * n)


def test_a_donated_argument_is_counted_once_and_equations_at_every_depth():
    x = jnp.ones((64, 64))
    assert program(lambda x: x + 1, x).peak_bytes == 2 * x.nbytes
    assert program(lambda x: x + 1, x, donate_argnums=0).peak_bytes == x.nbytes

    def nested(depth):
        if depth == 0:
            return jnp.sin
        return lambda x: jax.lax.scan(lambda c, _: (nested(depth - 1)(c), None), x, length=2)[0]

    counts = [len([*all_equations(jax.make_jaxpr(nested(depth))(1.0).jaxpr)]) for depth in range(4)]
    assert counts == [1, 2, 3, 4]


COLLECTIVES = {
    "all-reduce": lambda v: jax.lax.psum(v, "d"),
    "all-gather": lambda v: jax.lax.all_gather(v, "d"),
    "collective-permute": lambda v: jax.lax.ppermute(v, "d", [(0, 1), (1, 0)]),
    "reduce-scatter": lambda v: jax.lax.psum_scatter(v, "d", tiled=True),
    "all-to-all": lambda v: jax.lax.all_to_all(v, "d", 0, 0, tiled=True),
}


def test_a_collective_over_two_devices_is_counted_once():
    devices = np.array(jax.devices("cpu")[:2])
    mesh = jax.sharding.Mesh(devices, ("d",), axis_types=(AxisType.Auto,))
    each = PartitionSpec("d")
    for name, collective in COLLECTIVES.items():
        over = jax.shard_map(collective, mesh=mesh, in_specs=each, out_specs=each, check_vma=False)
        assert program(over, jnp.ones(8)).collectives == {name: 1}


# Written after what XLA prints for GPUs; operands and shapes are ours
GPU = (Path(__file__).parents[1] / "fixtures" / "programs" / "gpu.hlo").read_text()


def test_a_gpu_program_counts_library_calls_as_what_they_do_and_asynchronous_pairs_once():
    ops = count_ops(GPU)
    assert ops["dot"] == 3  # two of cuBLAS, one in a fusion
    assert ops["convolution"] == 3  # two of cuDNN, one plain
    assert ops["custom-call"] == 1  # the one that is neither
    assert (ops["all-reduce"], ops["all-gather"], ops["reduce-scatter"]) == (1, 1, 1)
    assert not [name for name in ops if name.endswith(("-start", "-done"))]
    assert (ops["while"], ops["fusion"], ops["tuple"], ops["parameter"], ops["add"]) == (1, 1, 1, 4, 1)
    assert sum(ops.values()) == GPU.count(" = ") - 3  # second halves are no instructions of their own
