"""The chapter's networks in Flax NNX, weights to and from Gluon, and `hybridize`."""

from jaxperf.libraries import from_chapter

with from_chapter():
    from jaxperf.models.export import export_net as export_net
    from jaxperf.models.export import load_net as load_net
    from jaxperf.models.gluon_weights import from_gluon as from_gluon
    from jaxperf.models.gluon_weights import to_gluon as to_gluon
    from jaxperf.models.hybridize import Hybridized as Hybridized
    from jaxperf.models.hybridize import hybridize as hybridize
    from jaxperf.models.initializers import BOOK_INIT as BOOK_INIT
    from jaxperf.models.initializers import HE_INIT as HE_INIT
    from jaxperf.models.lenet import LeNet as LeNet
    from jaxperf.models.lenet import lenet as lenet
    from jaxperf.models.lenet import lenet_params as lenet_params
    from jaxperf.models.lenet import sgd as sgd
    from jaxperf.models.mlp import MLP as MLP
    from jaxperf.models.resnet import RESNET18_STAGES as RESNET18_STAGES
    from jaxperf.models.resnet import SMALL_STAGES as SMALL_STAGES
    from jaxperf.models.resnet import Residual as Residual
    from jaxperf.models.resnet import ResNet as ResNet
    from jaxperf.models.resnet import resnet18 as resnet18

del from_chapter  # what is left is what the package offers
