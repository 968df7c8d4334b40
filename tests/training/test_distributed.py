import sys

import pytest
import several

from jaxperf import distributed
from jaxperf.distributed import join, together
from jaxperf.errors import JaxperfError


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in (*distributed.BY_HAND, "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "method"),
    [
        ({"SLURM_STEP_NUM_TASKS": "2"}, "slurm"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpi4py"),
        ({"PMI_SIZE": "2"}, "mpi4py"),
        # JAX's detection of Kubernetes has no name
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, None),
    ],
)
def test_a_cluster_is_recognized_by_what_it_sets_for_tasks(variables, method, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (distributed._by_cluster() or {})["cluster_detection_method"] == method


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"},  # the batch script
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        {"JAX_COORDINATOR_ADDRESS": "host:1"},
    ],
)
def test_a_shell_on_a_node_is_alone(variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not join() and together(lambda: 7) == 7


@pytest.mark.parametrize(
    "values",
    [("", "2", "0"), ("host", "2", "0"), ("host:1", "two", "0"), ("host:1", "2", "2"), ("h:1", "2", "")],
)
def test_variables_that_make_no_sense_are_one_line(values, monkeypatch):
    for name, value in zip(distributed.BY_HAND, values):
        monkeypatch.setenv(name, value)
    with pytest.raises(JaxperfError, match="; several processes need all three"):
        join()


def test_a_missing_package_of_a_cluster_is_one_line(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setattr(distributed, "find_spec", lambda name: None)
    with pytest.raises(JaxperfError, match="pip install mpi4py"):
        join()


PROGRAM = """
import sys
from jaxperf.distributed import check_same, together
from jaxperf.process import ended, leave
def work():
    import jax
    print("process", jax.process_index(), flush=True)
    if sys.argv[1] == "differs":
        check_same(jax.process_index())
    if sys.argv[1] == "raises" and jax.process_index():
        raise ValueError("this process is broken")
    check_same("alike")
    return 0
leave(ended(lambda: together(work)))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("what", ["works", "differs", "raises"])
def test_processes_that_disagree_or_fail_end_at_once_with_a_status(what):
    done = several.run([sys.executable, "-c", PROGRAM, what])
    statuses, outputs, errors = zip(*done)
    # Gloo's C++ code may add lines of its own
    printed = [[line for line in out.splitlines() if "[Gloo]" not in line] for out in outputs]
    assert printed == [["process 0"], []]
    if what == "works":
        assert statuses == (0, 0), done
    elif what == "differs":
        line = "error: process 1 has other flags or versions than process 0; start all alike\n"
        assert statuses == (2, 2) and all(line in err for err in errors), done
    else:
        assert statuses[1] == 1 and "ValueError: this process is broken" in errors[1]
        assert statuses[0] != 0, done  # JAX or Gloo misses the other
