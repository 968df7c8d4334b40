import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxperf
from jaxperf.errors import JaxperfError
from jaxperf.plan import planning
from jaxperf.plan.arguments import by_position, mesh_of, place, positions_by_shape
from jaxperf.plan.cards import CARDS


def devices(count):
    return jax.devices("cpu")[:count]


def step(w, x, y):
    return w - 0.1 * jax.grad(lambda w: ((x @ w - y) ** 2).mean())(w)


W, X, Y = jnp.zeros((5, 3)), jnp.zeros((16, 5)), jnp.zeros((16, 3))


def placed(*args, count=8, fn=None, **options):
    return place(fn or jax.jit(step), args, devices(count), **{"axes": {}, **options})


def test_the_last_arguments_of_one_length_are_the_batch():
    for others in ((), (jnp.float32(1),), (jax.random.PRNGKey(0),), (jax.random.key(0),)):
        assert positions_by_shape((W, X, Y, *others)) == (1, 2)
    assert positions_by_shape(([W, W], {"x": X, "y": Y})) == (1,)
    assert positions_by_shape((X,)) == (0,)
    assert positions_by_shape((W, 3)) == ()
    assert positions_by_shape(()) == ()


def test_the_batch_grows_with_the_devices():
    on_eight = placed(W, X, Y)
    assert [a.shape for a in on_eight.args] == [(5, 3), (128, 5), (128, 3)]
    assert [a.sharding.spec for a in on_eight.args] == [P(), P("data"), P("data")]
    assert on_eight.batch == 128 and tuple(on_eight.axis) == (1, 2)
    # NumPy's 64 bits are 32 in the program
    assert placed(W, X, np.zeros((16, 3), np.int64)).args[2].dtype == jnp.int32


def test_a_named_batch_may_have_scalars_but_needs_a_common_first_axis():
    on_eight = placed(W, {"x": X, "y": Y, "scale": jnp.float32(1)}, batch=(1,))
    assert on_eight.batch == 128 and on_eight.args[1]["scale"].shape == ()
    message = r"^--batch 0,1: these arrays have no common length on that axis: \(16, 5\)"
    with pytest.raises(JaxperfError, match=message):
        placed({"w": W, "x": X}, jnp.float32(1), batch=(0, 1))


@pytest.mark.parametrize(("options", "batch"), [({"per_device": 4}, 32), ({"total": 24}, 24)])
def test_a_batch_over_two_axes_is_divided_by_both(options, batch):
    alone = NamedSharding(Mesh(np.array(devices(1)).reshape(1, 1), ("data", "fsdp")), P(("data", "fsdp")))
    x, y = (jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=alone) for a in (X, Y))
    on_eight = placed(W, x, y, axes={"data": 4, "fsdp": 2}, **options)
    assert on_eight.args[1].shape == (batch, 5)
    assert (on_eight.batch, on_eight.batch_axes) == (batch, ("data", "fsdp"))


def test_no_batch_to_change():
    with pytest.raises(JaxperfError, match="no argument is a batch"):
        placed(W, 3, per_device=4, fn=jax.jit(lambda w, n: w * n))


def test_shardings_are_kept_on_a_larger_mesh():
    mesh = Mesh(np.array(devices(4)).reshape(2, 2), ("data", "model"))
    w = jax.device_put(jnp.zeros((4, 6)), NamedSharding(mesh, P(None, "model")))
    x = jax.device_put(jnp.zeros((16, 4)), NamedSharding(mesh, P("data")))
    on_eight = place(jax.jit(lambda w, x: x @ w), (w, x), devices(8), axes={})
    assert dict(on_eight.mesh.shape) == {"data": 4, "model": 2}
    assert on_eight.args[0].sharding.spec == P(None, "model") and on_eight.args[0].shape == (4, 6)
    # eight examples on each of two devices become eight on each of four
    assert on_eight.args[1].shape == (32, 4)


def test_meshes():
    assert dict(mesh_of(devices(8), {}, ()).shape) == {"data": 8}
    assert dict(mesh_of(devices(8), {"data": 2, "model": 2}, ()).shape) == {"data": 4, "model": 2}
    with pytest.raises(JaxperfError, match="model=3 does not fit 8 devices"):
        mesh_of(devices(8), {"data": 1, "model": 3}, ())


@pytest.mark.parametrize(
    ("made", "name"), [("step", "str"), (None, "NoneType"), (("step", (X,)), "str"), (step, "step")]
)
def test_a_function_of_devices_that_makes_no_step(made, name):
    def make(devices):
        return made

    with pytest.raises(JaxperfError, match=f"^make returned {name}, which is no jitted step; give what"):
        placed(W, X, Y, fn=make)


def test_a_function_of_a_mesh_may_give_its_arguments():
    def make(mesh):
        x = jax.ShapeDtypeStruct((8, 3), jnp.float32, sharding=NamedSharding(mesh, P(mesh.axis_names[0])))
        return jax.jit(jnp.sin), (x,)

    on_two = place(make, (), devices(2), axes={"rows": 1})
    assert on_two.args[0].sharding.spec == P("rows") and on_two.batch == 8


@pytest.mark.usefixtures("cpus_as_gpus")
def test_what_cannot_be_planned():
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    for step, message in (
        (lambda x: jax.debug.print("{}", x.sum()), "calls Python while it runs"),
        (lambda x: jax.pure_callback(np.sin, scalar, x.sum()), "pure_callback"),
    ):
        with pytest.raises(JaxperfError, match=message):
            planning.plan(jax.jit(step), X, devices=(1,))


def test_the_description_of_a_card_is_read_as_utf8():
    code = (
        "import warnings; from jaxperf.plan import cards, deviceless\n"
        "warnings.simplefilter('error', EncodingWarning); deviceless.target_config(cards.CARDS['h100'])"
    )
    subprocess.run([sys.executable, "-X", "warn_default_encoding", "-c", code], check=True)


def test_counts_that_fill_no_nodes():
    with pytest.raises(JaxperfError, match="12 devices do not fill nodes of 8; take 8 or 16"):
        CARDS["h100"].nodes_of(12)
    with pytest.raises(JaxperfError, match="0 devices"):
        CARDS["h100"].nodes_of(0)


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
def test_a_plan_of_a_data_parallel_step():
    step_plan = jaxperf.plan(jax.jit(step), W, X, Y, devices=(1, 2, 8))
    assert [size.devices for size in step_plan.sizes] == [1, 2, 8]
    assert [size.collectives for size in step_plan.sizes] == [{}, {"all-reduce": 1}, {"all-reduce": 1}]
    one, *_, eight = step_plan.sizes
    assert eight.exchanges[0].bytes == W.nbytes
    assert eight.exchanges[0].source.startswith("test_arguments.py:")
    low, high = eight.efficiency_range
    assert one.efficiency is None and 0 < low < eight.efficiency < high and eight.efficiency < 1
    assert eight.between_s[0] < eight.time.step_s < eight.between_s[1]
    assert eight.time.stretched(1, 1) == pytest.approx(eight.time.step_s)
    text = str(step_plan)
    assert "Predicted step" in text and "all-reduce" in text and "tested on" in text
    body = step_plan.to_json()
    assert body["format"] == "jaxperf-plan"
    assert json.loads(json.dumps(body))["sizes"][2]["exchanges"][0]["groups"] == [[*range(8)]]


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
def test_a_plan_of_a_step_without_parameters():
    step_plan = planning.plan(jax.jit(lambda size=4: jnp.sin(jnp.arange(float(size)))), devices=(1, 8))
    assert [(size.devices, size.batch) for size in step_plan.sizes] == [(1, 0), (8, 0)]


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
def test_an_argument_by_name_only_may_be_the_batch():
    by_name = jax.jit(lambda w, *, batch, scale: w - scale * jax.grad(lambda w: (batch @ w).sum())(w))
    fn, args = by_position(by_name, (W,), {"batch": X, "scale": 2})
    (size,) = planning.plan(fn, *args, devices=(8,)).sizes
    assert (size.batch, size.batch_arguments, size.collectives) == (128, (1,), {"all-reduce": 1})
    with pytest.raises(JaxperfError, match="no number of devices"):
        planning.plan(by_name, W, devices=())


@pytest.mark.usefixtures("cpus_as_gpus")
def test_a_step_bound_to_devices():
    mesh = Mesh(np.array(devices(2)), ("data",))
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P())
    for bound in (jax.jit(step, out_shardings=NamedSharding(mesh, P())), jax.jit(mapped)):
        with pytest.raises(JaxperfError, match="bound to devices that are here; give a function of `dev"):
            planning.plan(bound, W, X, Y, devices=(8,))


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
def test_a_step_that_takes_the_mesh_of_its_context():
    def inside(w, x):
        return w - 0.1 * lax.psum(jax.grad(lambda w: jnp.tanh(x @ w).sum())(w), "data")

    fn = jax.jit(
        lambda w, x: jax.shard_map(inside, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)(w, x)
    )
    step_plan = planning.plan(fn, jnp.zeros((4, 4)), jnp.zeros((8, 4)), devices=(2, 8))
    assert [size.collectives for size in step_plan.sizes] == [{"all-reduce": 1}] * 2


class FilterJit:
    __module__ = "equinox._jit"

    def __init__(self, fn):
        self.__wrapped__ = fn

    def lower(self, *args):
        raise AssertionError("shapes are no arrays to Equinox")

    def __call__(self, *args):
        assert all(isinstance(a, jax.Array) for a in args[1:])
        return self.__wrapped__(*args)


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
def test_a_step_of_equinox():
    def step_of(activation, w, x, y):
        return activation, w - jax.grad(lambda w: ((activation(x @ w) - y) ** 2).mean())(w)

    step_plan = planning.plan(FilterJit(step_of), jnp.tanh, W, X, Y, devices=(8,))
    assert step_plan.name == "step_of"
    assert step_plan.sizes[0].collectives == {"all-reduce": 1}
    assert step_plan.sizes[0].batch == 128
