import importlib

import pytest

import jaxperf

PUBLIC = {
    "jaxperf.models": "MLP LeNet lenet resnet18 ResNet hybridize from_gluon to_gluon export_net load_net",
    "jaxperf.parallel": "make_step model_of model_of_function first_devices split_and_load allreduce",
    "jaxperf.measure": "measure interleaved stages Benchmark",
    "jaxperf.result": "ratio",
    "jaxperf.data": "fashion_mnist epoch_batches",
    "jaxperf.chapter.section": "section",
    "jaxperf.plan": "plan",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_name_can_be_called(module):
    package = importlib.import_module(module)
    names = PUBLIC[module].split()
    assert [name for name in names if not callable(getattr(package, name, None))] == []
    assert {*names} <= {*getattr(package, "__all__", names)}


def test_what_the_package_lists_is_there_without_another_import_and_watch_is_a_function_too():
    assert callable(jaxperf.watch) and importlib.import_module("jaxperf.watch.session")
    assert {module.split(".")[1] for module in PUBLIC} <= {*dir(jaxperf)}
    assert all(hasattr(jaxperf, name) for name in dir(jaxperf))
