"""What the NVIDIA driver reports through `nvidia-smi`, without starting CUDA."""

import shutil
import subprocess
from dataclasses import dataclass

PROGRAM = "nvidia-smi"
LIMIT_S = 20.0  # without persistence mode, the driver first starts each GPU
# Those of `Gpu`, in its order, and the driver's version
FIELDS = (
    "name", "memory.total", "memory.used", "utilization.gpu", "power.draw", "power.limit",
    "clocks.current.sm", "clocks.max.sm", "driver_version",
)  # fmt: skip
NO_DRIVER = (9, 12)  # exit statuses: the driver is not loaded, its library is not found
MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver describes it; 0 for what it does not report."""

    name: str
    total_bytes: int = 0
    used_bytes: int = 0
    busy_percent: int = 0  # share of the most recent time in which it computed anything
    power_w: int = 0
    power_limit_w: int = 0
    clock_mhz: int = 0  # of its multiprocessors, now; low while idle
    most_clock_mhz: int = 0

    def pace(self) -> tuple[str, ...]:
        """Return its clock and its power, which set its speed, each next to its limit; () if unknown."""
        pace = ((self.clock_mhz, self.most_clock_mhz, "MHz"), (self.power_w, self.power_limit_w, "W"))
        return tuple(f"{now} of at most {limit} {unit}" for now, limit, unit in pace if limit)


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: its version and GPUs, or why it cannot be queried (`missing`, `error`)."""

    version: str = ""
    gpus: tuple[Gpu, ...] = ()
    missing: bool = False
    error: str = ""

    def description(self) -> tuple[str, ...]:
        """Return the driver, and each GPU with its clock and power, for a result; () if there is none."""
        if not self.gpus:
            return ()
        gpus = (", ".join((f"{i}: {gpu.name}", *gpu.pace())) for i, gpu in enumerate(self.gpus))
        return (f"NVIDIA driver {self.version}", *gpus)


def ask_driver() -> Driver:
    program = shutil.which(PROGRAM)
    if program is None:
        return Driver(missing=True)
    command = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as e:
        return Driver(error=str(e))
    if done.returncode in NO_DRIVER:
        return Driver(missing=True)
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not all(len(row) == len(FIELDS) for row in rows):
        lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit status {done.returncode}"]
        return Driver(error=lines[0])
    gpus = []
    for name, *cells, _ in rows:
        total_mib, used_mib, *others = map(_number, cells)
        gpus.append(Gpu(name, total_mib * MIB, used_mib * MIB, *others))
    return Driver(rows[0][-1] if rows else "", tuple(gpus))


def _number(cell: str) -> int:
    """Return a cell as a number; 0 for what a GPU does not report, as "[N/A]"."""
    try:
        return round(float(cell))
    except ValueError:
        return 0
