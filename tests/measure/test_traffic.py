from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.measure.traffic import collective_bytes, device_bytes


def program(lines):
    return f"HloModule jit_f\n\nENTRY %main (a: f32[10]) -> f32[10] {{\n{lines}}}\n"


def test_an_arrays_bytes_are_its_dtypes_and_a_sum_over_devices_counts_what_each_has_afterwards():
    for dtype, size in {"f32": 4, "bf16": 2, "s8": 1, "pred": 1}.items():
        line = f"  %gathered = {dtype}[3,5]{{1,0}} all-gather(%x), dimensions={{0}}\n"
        assert collective_bytes(program(line)) == {"all-gather": 15 * size}
    mesh = Mesh(np.array(jax.devices("cpu")[:4]), ("d",))
    summed = jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
    text = jax.jit(summed).lower(jnp.ones((8, 100))).compile().as_text()
    assert collective_bytes(text) == {"all-reduce": 2 * 100 * 4}


def test_tuples_count_all_their_arrays_and_asynchronous_pairs_once():
    text = (
        "  %start = ((f32[10]{0}, f32[2]{0}), (f32[10]{0}, f32[2]{0})) all-reduce-start(%a, %b)\n"
        "  ROOT %done = (f32[10]{0}, f32[2]{0}) all-reduce-done(%start)\n"
        "  %both = (f32[4]{0}, f32[]) all-reduce(%c, %d), to_apply=%add\n"
    )
    assert collective_bytes(program(text)) == {"all-reduce": (10 + 2 + 4 + 1) * 4}


def test_device_bytes_count_copies_on_each_and_shards_where_they_are():
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("d",))
    put = partial(jax.device_put, jnp.ones((4, 8)))
    nbytes = device_bytes({"copied": put(NamedSharding(mesh, P())), "cut": put(NamedSharding(mesh, P("d")))})
    assert nbytes == dict.fromkeys(jax.devices("cpu")[:2], 4 * 8 * 4 + 2 * 8 * 4)
