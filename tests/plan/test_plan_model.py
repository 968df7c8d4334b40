from types import SimpleNamespace

import jax
import pytest

from jaxperf import hlo
from jaxperf.errors import JaxperfError
from jaxperf.plan import deviceless, links, planning, timeline
from jaxperf.plan.cards import CARDS
from jaxperf.plan.collectives import collectives
from jaxperf.plan.kernels import KERNEL_S, Kernel, kernels_of

H100 = CARDS["h100"]
NETWORK = links.NETWORKS["infiniband"]


def run(module):
    exchanges = collectives(module, {"data": 8}).items()
    timed = {name: planning._timed(H100, each, NETWORK) for name, each in exchanges}
    return timeline.run(module, kernels_of(module), timed, H100)


def test_a_kernel_takes_the_larger_of_both_and_more_bytes_and_nodes_take_longer():
    product = hlo.Product(1, 8192, 8192, 8192, "bfloat16")
    assert Kernel(1e6, (product,)).seconds(H100) == product.flops / H100.matrix_flops("bfloat16") + KERNEL_S
    assert Kernel(1e9, (product,)).memory_s(H100) < Kernel(1e9, (product,)).arithmetic_s(H100)
    assert Kernel(1e9).seconds(H100) == 1e9 / H100.bandwidth + KERNEL_S
    sizes = [links.exchange_s(H100, "all-reduce", 2**n, 8, 1) for n in range(10, 34)]
    assert sizes == sorted(sizes)
    nodes = [links.exchange_s(H100, "all-reduce", 2**26, 8 * n, n) for n in (1, 2, 8, 128)]
    assert nodes == sorted(nodes)


def test_a_synchronous_collective_is_waited_for(recorded):
    elapsed = run(recorded("data_parallel_jax_0_12"))
    assert elapsed.waits_s == pytest.approx(links.exchange_s(H100, "all-reduce", 2**21, 8, 1))
    assert elapsed.step_s == pytest.approx(elapsed.stretched(1, 1))


OVERLAP = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (x: f32[262144], y: f32[KERNEL]) -> f32[262144] {
  %x = f32[262144]{0} parameter(0)
  %y = f32[KERNEL]{0} parameter(1)
  %all-reduce-start = f32[262144]{0} all-reduce-start(%x), replica_groups={}, to_apply=%add
  %k = f32[KERNEL]{0} copy(%y)
  ROOT %all-reduce-done = f32[262144]{0} all-reduce-done(%all-reduce-start)
}
"""


@pytest.mark.parametrize(("length", "hidden"), [(10**9, True), (10, False)])
def test_an_asynchronous_collective_is_overlapped(length, hidden):
    elapsed = run(hlo.parse(OVERLAP.replace("KERNEL", str(length))))
    alone = links.exchange_s(H100, "all-reduce", 2**20, 8, 1)
    waited = elapsed.waits_s
    assert waited == 0 if hidden else waited == pytest.approx(alone - elapsed.stretched(1, 0))


def test_this_without_a_gpu_that_is_known(monkeypatch):
    def no_devices(platform):
        raise RuntimeError("Unknown backend cuda")

    for devices, message in (
        (no_devices, "no GPU is here for --for this; name a card, --for h100"),
        (lambda platform: [SimpleNamespace(device_kind="NVIDIA A10G")], "A10G is in no table"),
    ):
        monkeypatch.setattr(jax, "devices", devices)
        with pytest.raises(JaxperfError, match=message):
            deviceless.card_of_this_machine()
