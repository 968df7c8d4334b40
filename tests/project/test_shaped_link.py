"""Two namespaces as two machines: the same bits as in one process, and the link keeps to its figures."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from jaxperf.process import child_environment

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "shaped_link.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shaped_link", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["shaped_link"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def needs_namespaces() -> None:
    if why := script().why_not():
        pytest.skip(f"NOT TESTED, processes on two addresses: {why}")


@pytest.mark.real
@pytest.mark.thorough
def test_two_addresses_compute_the_bits_of_one_process_and_every_byte_crosses_the_link() -> None:
    needs_namespaces()
    command = [sys.executable, str(SCRIPT), "--steps", "3", "--mbit-s", "100", "--delay-ms", "0", "2"]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "3 steps over two addresses, and in one process: same bits"
    summed = int(lines[1].split(", ")[1].split()[0].replace(",", ""))
    assert lines[1].endswith("and waits for 36 delays")
    for line in lines[3:]:
        mbit_s, delay_ms, _, _, measured_ms, *_ = map(float, line.replace(",", "").split())
        # never sooner than the delays it counts on and its bytes, however quick the machine is
        assert measured_ms >= 36 * delay_ms + 8e-3 * summed / mbit_s
        carried = int(line.split()[-1].replace(",", ""))
        assert 2 * summed < carried < 2.5 * summed  # both directions; headers and acknowledgements
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert "jaxperf" not in left


@pytest.mark.real
@pytest.mark.thorough
def test_the_link_is_never_quicker_than_it_says() -> None:
    """A lower bound of time, which no busy machine can break: a delay both ways, and a packet's bits."""
    needs_namespaces()
    module = script()
    with module.linked_namespaces() as (link, spaces):
        link.delay_s, link.bit_s = 0.03, 1e6
        program = """
import socket, sys, time
end = socket.socket(type=socket.SOCK_DGRAM)
end.settimeout(20)
end.bind((sys.argv[1], 7000))
if sys.argv[3] == "echo":
    message, where = end.recvfrom(2000); end.sendto(message, where)
else:
    for _ in range(20):
        began = time.perf_counter(); end.sendto(bytes(1250), (sys.argv[2], 7000))
        end.settimeout(1)
        try: end.recv(2000); break
        except TimeoutError: pass  # the other does not listen yet
    print(time.perf_counter() - began)
"""
        first, second = module.ADDRESSES
        enter = [["ip", "netns", "exec", space, sys.executable, "-c", program] for space in spaces]
        echo = subprocess.Popen([*enter[1], second, first, "echo"])
        done = subprocess.run([*enter[0], first, second, "ask"], capture_output=True, text=True, timeout=60)
        assert echo.wait(30) == 0
    assert float(done.stdout) >= 2 * (0.03 + 8 * 1250 / 1e6)


def test_where_namespaces_are_not_possible_one_line_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    module = script()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert module.why_not() == "network namespaces need Linux and root"
    with pytest.raises(module.JaxperfError, match="need Linux and root"), module.linked_namespaces():
        pass
