"""The figures that the book prints, and those of its readers; no source states the hardware."""

from __future__ import annotations

from dataclasses import dataclass

from jaxperf.result import Reference


def book(name: str, value: float, part: str, *, beside: str = "", unit: str = "s") -> Reference:
    """A figure of the book's section `part` (MXNet), next to the measurement called `beside`."""
    return Reference(name, value, unit, "MXNet, the book", f"section {part}", beside=beside)


@dataclass(frozen=True)
class Training:
    """A training as the book prints it: test accuracy after each epoch, and the epoch's seconds."""

    accuracy: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()


# By number of GPUs. Section 8.5 has twice the batch and twice the learning rate on two GPUs; another printing
# of it ends with .93 on one GPU and .76 on two, so two runs of the same program differ by up to .14.
LENET = {
    1: Training((0.10, 0.60, 0.75, 0.68), (1.5, 1.4, 1.4, 1.4)),
    2: Training((0.10, 0.69, 0.74, 0.74), (2.6, 2.6, 2.4, 2.5)),
}
RESNET = {
    1: Training((0.89, 0.91, 0.91, 0.92), (14.0, 12.9, 13.0, 13.0)),
    2: Training((0.69, 0.86, 0.89, 0.90), (7.3, 6.7, 6.7, 6.7)),
}
TWO_RUNS_DIFFER = 0.14


def _other(name: str, value: float, system: str, source: str, beside: str = "", unit: str = "s") -> Reference:
    return Reference(name, value, unit, system, source, beside=beside)


# An epoch of section 8.4's training, as the book and others printed it
LENET_EPOCHS = (
    book("an epoch on 1 GPU", 1.4, "8.4.6", beside="1 device"),
    book("an epoch on 2 GPUs", 2.55, "8.4.6", beside="2 devices"),
    _other("an epoch on 1 GPU", 2.7, "PyTorch", "a retelling of section 8.4", beside="1 device"),
    _other("an epoch on 2 GPUs", 2.8, "PyTorch", "a retelling of section 8.4", beside="2 devices"),
    _other("test accuracy after 10 epochs, 1 GPU", 0.82, "PyTorch", "a retelling of section 8.4", unit=""),
    _other("test accuracy after 10 epochs, 2 GPUs", 0.81, "PyTorch", "a retelling of section 8.4", unit=""),
    _other("an epoch on a GPU and the CPU", 44, "MXNet", "a reader's answer to section 8.4's exercises"),
)
