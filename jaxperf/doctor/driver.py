"""What the NVIDIA driver says, as `nvidia-smi` shows it, without starting CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver describes it; 0 for what it does not tell.

    Attributes:
      name: its model.
      total_bytes, used_bytes: its memory.
      busy_percent: share of the last moments in which it computed anything.
      power_w, temperature_c: what it draws, how warm it is.
    """

    name: str
    total_bytes: int = 0
    used_bytes: int = 0
    busy_percent: int = 0
    power_w: float = 0.0
    temperature_c: int = 0


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: its version and GPUs, or why there is nothing to ask (`missing`, `trouble`)."""

    version: str = ""
    gpus: tuple[Gpu, ...] = ()
    missing: bool = False
    trouble: str = ""


def ask_driver() -> Driver:
    """Ask NVIDIA's management library for version, names and memory, without starting CUDA."""
    try:
        import pynvml
    except ImportError:
        return Driver(trouble="the package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as e:
        absent = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return Driver(missing=True) if e.value in absent else Driver(trouble=str(e))
    try:
        count = pynvml.nvmlDeviceGetCount()
        gpus = tuple(_gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count))
        return Driver(_text(pynvml.nvmlSystemGetDriverVersion()), gpus)
    except pynvml.NVMLError as e:
        return Driver(trouble=str(e))
    finally:
        pynvml.nvmlShutdown()


def _gpu(pynvml: Any, handle: Any) -> Gpu:
    name = _text(pynvml.nvmlDeviceGetName(handle))

    def tell(name: str, *args: Any) -> Any:
        try:
            return getattr(pynvml, name)(handle, *args)
        except (pynvml.NVMLError, AttributeError):  # GPUs that share the host's memory do not tell, for one
            return None

    memory, rates = tell("nvmlDeviceGetMemoryInfo"), tell("nvmlDeviceGetUtilizationRates")
    return Gpu(
        name,
        total_bytes=memory.total if memory else 0,
        used_bytes=memory.used if memory else 0,
        busy_percent=rates.gpu if rates else 0,
        power_w=(tell("nvmlDeviceGetPowerUsage") or 0) / 1000,
        temperature_c=tell("nvmlDeviceGetTemperature", 0) or 0,
    )


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
