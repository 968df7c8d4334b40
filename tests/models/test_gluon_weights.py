import numpy as np
import pytest
from flax import nnx
from mxnet_fixtures import SMALL_STAGES, load, weights

from jaxperf.errors import JaxperfError
from jaxperf.models import MLP, LeNet, Residual, ResNet, from_gluon, to_gluon

NETS = {
    "mlp": lambda seed: MLP((6, 5, 4), rngs=nnx.Rngs(seed)),
    "lenet": lambda seed: LeNet(rngs=nnx.Rngs(seed)),
    "resnet": lambda seed: ResNet(10, stages=((8, 2), (16, 2)), rngs=nnx.Rngs(seed)),
    "residual": lambda seed: Residual(3, 4, use_1x1conv=True, rngs=nnx.Rngs(seed)),
    "sequential": lambda seed: nnx.Sequential(
        nnx.Conv(1, 2, (3, 3), rngs=nnx.Rngs(seed)), nnx.relu, MLP((2, 3), rngs=nnx.Rngs(seed))
    ),
}


def drawn(net, seed=1):
    return weights({name: value.shape for name, value in to_gluon(net).items()}, "sound", seed)


@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_round_trip_keeps_every_bit(make):
    source = make(0)
    arrays = drawn(source)
    back = to_gluon(from_gluon(make(1), arrays))
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)


@pytest.mark.parametrize("name", ["mlp", "resnet_small"])
def test_order_and_shapes_are_those_of_collect_params(name):
    answers = load(name)
    net = MLP(rngs=nnx.Rngs(0)) if name == "mlp" else ResNet(10, stages=SMALL_STAGES, rngs=nnx.Rngs(0))
    weights = to_gluon(net)
    assert [str(value.shape) for value in weights.values()] == answers["shapes"].tolist()
    names = zip(weights, answers["names"].tolist())
    assert all(gluon_name.endswith(name.rpartition(".")[2]) for name, gluon_name in names)


def test_a_file_of_numpy_works_as_it_is(tmp_path):
    net = NETS["mlp"](0)
    arrays = drawn(net)
    gluon_names = ["dense0_weight", "dense0_bias", "dense1_weight", "dense1_bias"]
    np.savez(tmp_path / "w.npz", **dict(zip(gluon_names, arrays.values())))
    with np.load(tmp_path / "w.npz") as file:
        from_gluon(net, file)
    np.testing.assert_array_equal(to_gluon(net)["1.weight"], arrays["1.weight"])


def refused(net, arrays, match):
    before = to_gluon(net)
    with pytest.raises(JaxperfError, match=match) as caught:
        from_gluon(net, arrays)
    assert "\n" not in str(caught.value)
    assert all((to_gluon(net)[name] == value).all() for name, value in before.items()), "half-written"


def test_wrong_arrays_are_named_and_nothing_is_written():
    net = NETS["mlp"](0)
    arrays = drawn(net)
    values = list(arrays.values())
    refused(net, values[:3], "the network has 4 arrays, 3 were given")
    refused(net, [*values, np.ones(7)], "the network has 4 arrays, 5 were given")
    transposed = [*values[:2], values[2].T, values[3]]
    refused(net, transposed, r"number 2 has shape \(5, 4\), parameter 1.weight needs \(4, 5\)")
    refused(net, [values[0], values[1], values[2], values[3].astype(int)], "number 3 is int64")


def test_a_name_of_another_kind_is_refused_even_where_the_shape_fits():
    net = NETS["residual"](0)
    arrays = drawn(net)
    names = list(arrays)
    swapped = [n.replace("bn1.", "batchnorm0_").replace("bn2.", "batchnorm1_") for n in names]
    i, j = swapped.index("batchnorm0_gamma"), swapped.index("batchnorm0_beta")
    swapped[i], swapped[j] = swapped[j], swapped[i]
    line = "batchnorm0_beta comes where bn1.gamma is due; keep the order"
    refused(net, dict(zip(swapped, arrays.values())), line)


def test_a_layer_that_gluon_does_not_have_here_is_refused():
    net = nnx.Sequential(nnx.LayerNorm(3, rngs=nnx.Rngs(0)))
    with pytest.raises(JaxperfError, match="no Gluon order is known for a layer of type LayerNorm"):
        to_gluon(net)
