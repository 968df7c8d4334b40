"""Two processes that save together: of a full disk or a damaged checkpoint both learn, and none waits."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from trainings import NAME, figures, in_two_processes, step_of, trained

from jaxperf.train.manifest import read_verified, write_manifest

TRAINING = """
import sys, time
from pathlib import Path
import jax
jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[1]))
import disks, trainings
folder, trouble = Path(sys.argv[3]), sys.argv[4]
def before(n):
    if n == 4 and hasattr(disks, trouble) and jax.process_index() == 0:
        time.sleep(0.5)  # the checkpoint of step 3 is whole by then
        getattr(disks, trouble)(folder)
step = trainings.step_of()  # both wait for each other here
if trouble == "second comes late" and jax.process_index():
    time.sleep(2)
epochs, leaves = trainings.trained(step, folder, before=before)
print(trainings.figures(epochs), [leaf.tobytes().hex() for leaf in leaves])
"""


@pytest.fixture(scope="module")
def expected() -> str:
    """What a process with two devices trains, which two with one each must end with."""
    epochs, leaves = trained(step_of())
    return f"{figures(epochs)} {[leaf.tobytes().hex() for leaf in leaves]}"


def errors_of_two(folder: Path, expected: str, trouble: str = "") -> list[list[str]]:
    """What each process says on standard error of a training in `folder`; it must end as expected."""
    ended = in_two_processes(TRAINING, *[(str(folder), trouble)] * 2)
    for status, output, errors in ended:
        assert (status, output.splitlines()[-1:]) == (0, [expected]), errors
    return [errors.splitlines() for _, _, errors in ended]


def matching(lines: list[str], pattern: str) -> list[str]:
    return [line for line in lines if re.search(pattern, line)]


@pytest.mark.real
@pytest.mark.thorough
@pytest.mark.parametrize("trouble", ["fill", "use_up_files"])  # Orbax cannot write, and not even we can begin
def test_a_full_disk_costs_two_processes_checkpoints_but_not_the_training(
    trouble: str, small_disk: Path, expected: str
) -> None:
    first, second = errors_of_two(small_disk, expected, trouble)
    lost = matching(first, "cannot save")
    assert lost and all(line.endswith(": No space left on device; step 3 is the newest") for line in lost)
    assert not matching(second, "cannot save")
    assert not list(small_disk.rglob("*.part"))
    ballast = small_disk / "ballast"
    ballast.unlink() if ballast.is_file() else shutil.rmtree(ballast)
    for errors in errors_of_two(small_disk, expected):
        assert matching(errors, "^going on after step 3 "), errors


@pytest.mark.thorough
def test_two_processes_go_on_from_the_checkpoint_before_those_that_are_damaged(
    tmp_path: Path, expected: str
) -> None:
    """The last one is cut short; the files of the one before it are of something else.

    The second process starts to look 2 s after the first, which must not have renamed anything by then.
    """
    errors_of_two(tmp_path, expected)
    last, other = (tmp_path / NAME / f"step-{step:08d}" for step in (8, 7))
    array = max((last / "state").rglob("d/*"), key=lambda path: path.stat().st_size)
    os.truncate(array, 10)
    about = read_verified(other)
    (other / "state" / "_METADATA").write_text("{}")
    write_manifest(other, about)
    for errors in errors_of_two(tmp_path, expected, "second comes late"):
        assert matching(errors, "step-00000008 is damaged .*; using step 7$"), errors
        assert matching(errors, "step-00000007 is damaged .*; using step 6$"), errors
        assert matching(errors, "^going on after step 6 "), errors
    assert last.with_suffix(".damaged").is_dir() and other.with_suffix(".damaged").is_dir()
