"""Two namespaces as two machines: the same bits as in one process, and the link keeps to its figures."""

import os
import subprocess
from pathlib import Path
from types import ModuleType

import children
import pytest
import scripts

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "shaped_link.py"


@pytest.fixture
def shaped_link(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return scripts.load("shaped_link", SCRIPT, monkeypatch)


@pytest.mark.real
@pytest.mark.thorough
def test_two_addresses_compute_the_bits_of_one_process_and_every_byte_crosses_the_link(
    shaped_link: ModuleType,
) -> None:
    if why := shaped_link.why_not():
        pytest.skip(f"NOT TESTED, processes on two addresses: {why}")
    done = children.run(SCRIPT, "--steps", "3", "--mbit-s", "100", "--delay-ms", "0", "2")
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


def test_where_namespaces_are_not_possible_one_line_says_why(
    shaped_link: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert shaped_link.why_not() == "network namespaces need Linux and root"
    refused = pytest.raises(shaped_link.JaxperfError, match="need Linux and root")
    with refused, shaped_link.linked_namespaces():
        pass
