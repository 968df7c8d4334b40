"""One program in several processes: their start by JAX's own detection or by three options, and their end.

Each process runs the same program. SLURM, MPI and Kubernetes tell JAX how many there are, which one this is
and where process 0 is; `jaxperf launch`, or a user who starts the processes by hand, gives three options.

    options = Processes()  # as flags, or from the environment
    leave(ended(lambda: together(options, train_all)))
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import socket
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from jaxperf import jax_internals
from jaxperf.errors import JaxperfError
from jaxperf.flags import at_least
from jaxperf.process import FAILED, ended, leave, say
from jaxperf.result.machine import CUDA_PLUGINS, versions

# Seconds without a heartbeat until the others give up on a process. JAX's own 100 s are for clusters of
# thousands of machines; a C++ thread sends the heartbeat, so it is on time even if Python is busy.
HEARTBEAT_S = 30
# JAX's name for the detection method; its detection of Kubernetes has none and is automatic.
_METHODS = {"": "deactivate", "slurm": "slurm", "mpi4py": "mpi4py", "kubernetes": None}


def _integer_variable(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else None


@dataclass(frozen=True)
class Processes:
    """Flags for a run in several processes: all three, or none where a cluster gives them."""

    coordinator: Annotated[str, tyro.conf.arg(metavar="HOST:PORT")] = field(
        default_factory=lambda: os.environ.get("JAX_COORDINATOR_ADDRESS", "")
    )
    """Where process 0 listens; JAX_COORDINATOR_ADDRESS if not given."""
    num_processes: Annotated[int | None, at_least(1)] = field(
        default_factory=lambda: _integer_variable("JAX_NUM_PROCESSES")
    )
    """How many processes run this program together; JAX_NUM_PROCESSES if not given."""
    process_id: Annotated[int | None, at_least(0)] = field(
        default_factory=lambda: _integer_variable("JAX_PROCESS_ID")
    )
    """Which of them this is, from 0; JAX_PROCESS_ID if not given."""

    def __post_init__(self) -> None:
        flags = {
            "--coordinator": self.coordinator or None,
            "--num-processes": self.num_processes,
            "--process-id": self.process_id,
        }
        missing = [flag for flag, value in flags.items() if value is None]
        if 0 < len(missing) < len(flags):
            raise JaxperfError(f"{' and '.join(missing)} missing; several processes need all three options")
        if missing:
            return
        host, _, port = self.coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise JaxperfError(f"--coordinator {self.coordinator!r} is not HOST:PORT, e.g. 10.0.0.1:8476")
        assert self.process_id is not None and self.num_processes is not None
        if self.process_id >= self.num_processes > 0:
            raise JaxperfError(
                f"--process-id {self.process_id} of {self.num_processes} processes; they count from 0"
            )

    @property
    def several(self) -> bool:
        """Return whether this process is one of several, according to the options or a cluster."""
        return (self.num_processes or 1) > 1 if self.coordinator else bool(cluster(os.environ))


def cluster(environment: Mapping[str, str]) -> str:
    """Return the kind of cluster that started this process as one of several; "" if none did.

    A shell on a cluster node also has many of these variables, so the number of tasks decides.
    """
    count = environment.get("SLURM_STEP_NUM_TASKS", "")
    if "SLURM_STEP_NODELIST" in environment and count.isdecimal() and int(count) > 1:
        return "slurm"
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):  # Open MPI; MPICH and Intel MPI
        if environment.get(name, "").isdecimal() and int(environment[name]) > 1:
            return "mpi4py"
    if "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" in environment:
        return "kubernetes"
    return ""


def together(options: Processes, work: Callable[[], int]) -> int:
    """Run `work` as one of several processes, or alone, and return the exit status.

    Call it before JAX's backend starts. Only process 0 prints to standard output; errors of all are printed.
    If anything goes wrong in one of several, its process ends at once: JAX's own shutdown waits for all
    processes, 300 s for one that never arrives, and meanwhile those that wait for this one do not learn that
    it failed.

    Raises:
      JaxperfError, ...: what `work` raises, in a process that is alone.
    """
    if not options.several:
        return work()

    def joined() -> int:
        try:
            start(options)
            with _only_the_first_prints():
                return work()
        except JaxperfError:
            raise
        except Exception as e:
            if not lost_another(e):
                traceback.print_exc()
                return FAILED
            say(f"error: another process left the run, its log says why: {str(e).splitlines()[0]}")
            return FAILED

    status = ended(joined)
    if status:
        leave(status)
    return 0


def start(options: Processes) -> None:
    """Join the other processes, if there are any; call it before JAX's backend starts.

    Raises:
      JaxperfError: the processes do not find each other, a GPU is missing, or what the cluster needs is
        not installed.
    """
    if not options.several:
        return
    manager = "" if options.coordinator else cluster(os.environ)
    package = {"mpi4py": "mpi4py", "kubernetes": "kubernetes"}.get(manager, "jax")
    if importlib.util.find_spec(package) is None:
        raise JaxperfError(
            f"this process is one of several of {manager}, which JAX asks through the package {package}; "
            f"pip install {package}"
        )
    _check_assigned_gpu(options)
    import jax

    try:
        if options.process_id == 0:
            _check_free(options.coordinator)
        jax.distributed.initialize(
            options.coordinator or None,
            options.num_processes,
            options.process_id,
            cluster_detection_method=_METHODS[manager],
            heartbeat_timeout_seconds=HEARTBEAT_S,
        )
    except (RuntimeError, ValueError, OSError) as e:
        where = options.coordinator or f"as {manager} says"
        reason = str(e).strip().splitlines() or [type(e).__name__]
        raise JaxperfError(f"the processes did not meet ({where}): {reason[0]}") from None
    if is_loopback(options.coordinator):
        _exchange_on_loopback()


def _check_assigned_gpu(options: Processes) -> None:
    """Reject a process to which `jaxperf launch` has assigned a GPU that does not exist.

    Raises:
      JaxperfError: fewer GPUs than processes.
    """
    import jax

    device = os.environ.get("JAX_LOCAL_DEVICE_IDS", "")
    platforms = jax.config.jax_platforms or "cuda"  # type: ignore[attr-defined]
    if (
        not device.isdecimal()
        or {"cuda", "gpu"}.isdisjoint(platforms.split(","))
        or not versions(CUDA_PLUGINS)
    ):
        return
    from jaxperf.result.gpus import ask_driver

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = ask_driver().gpus if visible is None else [n for n in visible.split(",") if n not in ("", "-1")]
    if 0 < len(gpus) <= int(device):
        raise JaxperfError(
            f"{options.num_processes} processes and {len(gpus)} GPU(s), and each process has one of its own; "
            f"give -n {len(gpus)}, or let them compute on the CPU with JAX_PLATFORMS=cpu"
        )


def _check_free(coordinator: str) -> None:
    """Raise OSError if process 0 cannot listen there: JAX 0.10 ends such a process with SIGSEGV."""
    address = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or f":{coordinator.rpartition(':')[2]}"
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host.strip("[]"), int(port)), family=family).close()


def is_loopback(address: str) -> bool:
    """Return whether HOST:PORT is reachable only from this machine."""
    host = address.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def _exchange_on_loopback() -> None:
    """Have Gloo, which transfers the sums between CPUs, listen where the coordinator does.

    By default it listens at the address of the host's name, which on most machines is reachable from the
    network. JAX has no option for that, so its factory of the CPU backend is called with our own Gloo object.
    If these private names have changed, Gloo listens at JAX's default address, and a line says so.
    """
    try:
        register_backend_factory = jax_internals.get(jax_internals.CPU_FACTORY)
        gloo = functools.partial(
            jax_internals.get(jax_internals.GLOO),
            distributed_client=jax_internals.get(jax_internals.COORDINATOR).client,
            hostname="127.0.0.1",
        )
        make = jax_internals.get(jax_internals.CPU_CLIENT)
    except JaxperfError as e:
        say(f"note: sums between processes may be reachable from the network: {e}")
        return
    if os.environ.get("JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo") == "gloo":
        register_backend_factory("cpu", lambda: make(collectives=gloo()), fail_quietly=False)


@contextlib.contextmanager
def _only_the_first_prints() -> Iterator[None]:
    """Drop what other processes than process 0 print to standard output."""
    # `jax.process_index` would start the backend
    if jax_internals.get(jax_internals.COORDINATOR).process_id == 0:
        yield
        return
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):  # noqa: PTH123
        yield


def lost_another(error: BaseException) -> bool:
    """Return whether an error says that another process ended in the middle of a sum, or before the first."""
    text = str(error)
    phrases = ("Connection", "closed", "peer", "Read error", "initialization failed: DEADLINE_EXCEEDED")
    return "Gloo" in text and any(phrase in text for phrase in phrases)
