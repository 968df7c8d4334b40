import json

import children
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxperf.errors import JaxperfError
from jaxperf.models.export import export_net, load_net
from jaxperf.models.hybridize import hybridize


class Net(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(4, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.dense(x))


@pytest.fixture
def net():
    made = Net(nnx.Rngs(0))
    made(jax.random.normal(jax.random.key(1), (8, 4)))  # statistics that are not the initial ones
    made.eval()
    return made


def test_a_process_without_model_code_computes_the_same(net, tmp_path):
    x = np.asarray(jax.random.normal(jax.random.key(2), (5, 4)))
    program, arrays = export_net(net, tmp_path / "net", x)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import json, sys, pathlib, jax.export, numpy, safetensors.numpy as st\n"
        "p, a, x = sys.argv[1:]\n"
        "program = jax.export.deserialize(bytearray(pathlib.Path(p).read_bytes()))\n"
        "out = program.call(st.load_file(a), numpy.load(x))\n"
        "print(json.dumps([numpy.asarray(out).tolist(), 'flax' in sys.modules or 'jaxperf' in sys.modules]))"
    )
    done = children.run("-c", code, program, arrays, tmp_path / "x.npy", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    output, has_model_code = json.loads(done.stdout)
    assert not has_model_code
    np.testing.assert_allclose(output, net(x), rtol=1e-6, atol=1e-6)


def test_the_arrays_go_by_the_modules_names_and_other_ones_can_be_put_in(net, tmp_path):
    x = jnp.ones((2, 4))
    export_net(hybridize(net), tmp_path / "net", x)
    exported, arrays = load_net(tmp_path / "net")
    assert set(arrays) == {"dense/kernel", "dense/bias", "norm/scale", "norm/bias", "norm/mean", "norm/var"}
    zero = {**arrays, "dense/kernel": np.zeros((4, 3), np.float32)}
    net.dense.kernel[...] = jnp.zeros((4, 3))
    np.testing.assert_allclose(exported.call(zero, x), net(x), rtol=1e-6)


def test_a_net_that_is_exported_again_has_its_arrays_of_now(net, tmp_path):
    x, twin, stem = jnp.ones((2, 4)), hybridize(net), tmp_path / "net"
    export_net(twin, stem, x)
    net.dense.kernel[...] = 2 * net.dense.kernel[...]
    export_net(twin, stem, x)
    exported, arrays = load_net(stem)
    np.testing.assert_allclose(exported.call(arrays, x), net(x), rtol=1e-6)


def test_a_symbolic_batch_size_serves_every_batch(net, tmp_path):
    (n,) = jax.export.symbolic_shape("n")
    export_net(net, tmp_path / "net", jax.ShapeDtypeStruct((n, 4), jnp.float32))
    exported, arrays = load_net(tmp_path / "net")
    for rows in (1, 7):
        x = jax.random.normal(jax.random.key(rows), (rows, 4))
        np.testing.assert_allclose(exported.call(arrays, x), net(x), rtol=1e-5, atol=1e-6)


def test_a_program_for_a_gpu_too_can_be_made_without_one_and_still_runs_here(net, tmp_path):
    x = jax.random.normal(jax.random.key(2), (5, 4))
    export_net(net, tmp_path / "net", x, platforms=("cpu", "cuda"))
    exported, arrays = load_net(tmp_path / "net")
    assert exported.platforms == ("cpu", "cuda")
    np.testing.assert_allclose(exported.call(arrays, x), net(x), rtol=1e-5, atol=1e-6)
    export_net(net, tmp_path / "gpu", x, platforms=("cuda",))
    assert load_net(tmp_path / "gpu")[0].platforms == ("cuda",)


def test_missing_and_damaged_files_end_in_one_line(net, tmp_path):
    with pytest.raises(JaxperfError, match=r"cannot read .*jaxexport: No such file"):
        load_net(tmp_path / "none")
    program, arrays = export_net(net, tmp_path / "net", jnp.ones((2, 4)))
    for file in (program, arrays):
        whole = file.read_bytes()
        file.write_bytes(whole[:40])
        with pytest.raises(JaxperfError, match="is damaged") as e:
            load_net(tmp_path / "net")
        assert "\n" not in str(e.value)
        file.write_bytes(whole)
