"""The chapter's networks in Flax NNX, weights to and from Gluon, and `hybridize`."""

from jaxperf.libraries import from_chapter

with from_chapter():
    from jaxperf.models.export import export_net, load_net
    from jaxperf.models.gluon_weights import from_gluon, to_gluon
    from jaxperf.models.hybridize import Hybridized, hybridize
    from jaxperf.models.initializers import BOOK_INIT, HE_INIT
    from jaxperf.models.lenet import LeNet, lenet, lenet_params, sgd
    from jaxperf.models.mlp import MLP
    from jaxperf.models.resnet import RESNET18_STAGES, SMALL_STAGES, Residual, ResNet, resnet18

__all__ = [
    "BOOK_INIT", "HE_INIT", "MLP", "RESNET18_STAGES", "SMALL_STAGES", "Hybridized", "LeNet", "ResNet",
    "Residual", "export_net", "from_gluon", "hybridize", "lenet", "lenet_params", "load_net", "resnet18",
    "sgd", "to_gluon",
]  # fmt: skip
