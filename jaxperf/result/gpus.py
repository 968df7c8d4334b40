"""What the NVIDIA driver reports, as `nvidia-smi` shows it, without starting CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SM_CLOCK = 1  # NVML_CLOCK_SM


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver describes it; 0 for what it does not report.

    Attributes:
      name: its model.
      total_bytes, used_bytes: its memory.
      busy_percent: share of the most recent time in which it computed anything.
      power_w, power_limit_w: the power that it draws, and may draw.
      clock_mhz, most_clock_mhz: of its multiprocessors, now (low while idle) and at most.
    """

    name: str
    total_bytes: int = 0
    used_bytes: int = 0
    busy_percent: int = 0
    power_w: float = 0.0
    power_limit_w: float = 0.0
    clock_mhz: int = 0
    most_clock_mhz: int = 0

    def pace(self) -> tuple[str, ...]:
        """Return its clock and its power, which set its speed, each next to its limit; () if unknown."""
        readings = (
            (self.most_clock_mhz, f"{self.clock_mhz} of at most {self.most_clock_mhz} MHz"),
            (self.power_limit_w, f"{self.power_w:.0f} of at most {self.power_limit_w:.0f} W"),
        )
        return tuple(text for limit, text in readings if limit)


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: its version and GPUs, or why it cannot be queried (`missing`, `trouble`)."""

    version: str = ""
    gpus: tuple[Gpu, ...] = ()
    missing: bool = False
    trouble: str = ""

    def description(self) -> tuple[str, ...]:
        """Return the driver, and each GPU with its clock and power, for a result; () if there is none."""
        if not self.gpus:
            return ()
        gpus = (", ".join((f"{i}: {gpu.name}", *gpu.pace())) for i, gpu in enumerate(self.gpus))
        return (f"NVIDIA driver {self.version}", *gpus)


def ask_driver() -> Driver:
    """Query NVIDIA's management library for version, names and memory, without starting CUDA."""
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
        except (pynvml.NVMLError, AttributeError):  # e.g. from GPUs that share the host's memory
            return None

    memory, rates = tell("nvmlDeviceGetMemoryInfo"), tell("nvmlDeviceGetUtilizationRates")
    return Gpu(
        name,
        total_bytes=memory.total if memory else 0,
        used_bytes=memory.used if memory else 0,
        busy_percent=rates.gpu if rates else 0,
        power_w=(tell("nvmlDeviceGetPowerUsage") or 0) / 1000,
        power_limit_w=(tell("nvmlDeviceGetEnforcedPowerLimit") or 0) / 1000,
        clock_mhz=tell("nvmlDeviceGetClockInfo", SM_CLOCK) or 0,
        most_clock_mhz=tell("nvmlDeviceGetMaxClockInfo", SM_CLOCK) or 0,
    )


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
