"""A command as several processes of this machine, each with one CPU device, started by hand."""

import socket
import subprocess

from jaxperf.process import child_environment

_held = []


def free_port():
    """Return a port that only a server that shares ports, as gRPC's do, may take until this process ends."""
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    probe.bind(("127.0.0.1", 0))
    _held.append(probe)
    return int(probe.getsockname()[1])


def start(command, count=2, *, folder=None, **variables):
    environment = child_environment() | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"} | variables
    environment |= {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": str(count)}
    return [
        subprocess.Popen(
            [str(word) for word in command], env=environment | {"JAX_PROCESS_ID": str(i)}, cwd=folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(count)
    ]  # fmt: skip


def finish(processes):
    try:
        texts = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *text) for process, text in zip(processes, texts)]


def run(command, count=2, *, folder=None, **variables):
    return finish(start(command, count, folder=folder, **variables))
