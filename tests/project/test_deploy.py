"""What starts a training on a cluster: valid objects and scripts, and the names that JAX looks for."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from experiments import train

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCHEMA = json.loads((Path(__file__).parents[1] / "fixtures" / "kubernetes" / "schema.json").read_text())

SAVING = ["--checkpoints", "checkpoints/7", "--resume"]
TRAINS = ["experiments/train.py", "--json", "results/train-7.json", *SAVING]
POD = ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec")  # of the JobSet
JOBSET = "jobset.sigs.k8s.io/jobset-name"


def objects() -> dict[str, dict[str, Any]]:
    manifests = list(yaml.safe_load_all((DEPLOY / "jobset.yaml").read_text()))
    return {each["kind"]: each for each in manifests}


def check(each: dict[str, Any]) -> None:
    kind = "JobSet" if each["kind"] == "JobSet" else f"V1{each['kind']}"
    jsonschema.validate(each, {**SCHEMA, "$ref": f"#/definitions/{kind}"})


def test_every_object_is_valid_and_a_slip_is_not() -> None:
    assert list(objects()) == [
        "ServiceAccount", "Role", "RoleBinding", "Service", "PersistentVolumeClaim", "JobSet",
    ]  # fmt: skip
    for each in objects().values():
        check(each)
    for path, value in (
        (("spec", "replicatedJob"), []),
        (("spec", "replicatedJobs", 0, "replicas"), "1"),
        ((*POD, "volumes", 0, "persistentVolumeClaim", "claim"), "jaxperf"),
        (("spec", "replicatedJobs", 0, "template", "spec", "parallel"), 2),
        ((*POD, "containers", 0, "cmd"), []),
    ):
        wrong = copy.deepcopy(objects()["JobSet"])
        inner: Any = wrong
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            check(wrong)


def test_the_pods_have_the_names_and_rights_that_jax_needs() -> None:
    by_kind = objects()
    jobset, service, role = by_kind["JobSet"], by_kind["Service"], by_kind["Role"]
    name, [workers] = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    # JAX's coordinator is JOB-0.JOBSET, so DNS must know the pods under the JobSet's name
    assert name == service["metadata"]["name"] == jobset["spec"]["network"]["subdomain"]
    assert service["spec"]["selector"] == {JOBSET: name}
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    # it counts the processes by the job's parallelism, so there is one job
    assert (workers["replicas"], job["completionMode"]) == (1, "Indexed")
    assert job["parallelism"] == job["completions"]
    verbs = {resource: rule["verbs"] for rule in role["rules"] for resource in rule["resources"]}
    assert "list" in verbs["pods"] and "get" in verbs["jobs"]
    account = job["template"]["spec"]["serviceAccountName"]
    assert [s["name"] for s in by_kind["RoleBinding"]["subjects"]] == [account]
    assert by_kind["RoleBinding"]["roleRef"]["name"] == role["metadata"]["name"]
    command = job["template"]["spec"]["containers"][0]["command"]
    assert (ROOT / command[1]).is_file()


def test_pods_that_are_started_again_go_on_from_checkpoints_that_outlived_them() -> None:
    """On a volume that all pods mount, with flags that the program takes."""
    by_kind = objects()
    pod: Any = by_kind["JobSet"]
    for key in POD:
        pod = pod[key]
    [container] = pod["containers"]
    config = train.parse(container["command"][2:])
    assert by_kind["JobSet"]["spec"]["failurePolicy"]["maxRestarts"] > 0 and config.resume
    [mount] = [m for m in container["volumeMounts"] if config.checkpoints.is_relative_to(m["mountPath"])]
    [volume] = [v for v in pod["volumes"] if v["name"] == mount["name"]]
    claim = by_kind["PersistentVolumeClaim"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert config.json.is_relative_to(mount["mountPath"])


def test_the_batch_script_starts_what_it_is_told_under_srun(tmp_path: Path) -> None:
    """With an `srun` of our own that prints its words: bash runs the whole script."""
    script, srun = DEPLOY / "slurm.sh", tmp_path / "srun"
    srun.write_text('#!/bin/bash\nprintf "%s\\n" "$@"; env | grep -ic _proxy= || true\n')
    srun.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(ROOT)}
    environment |= {"SLURM_JOB_ID": "7", "https_proxy": "http://proxy"}
    for arguments, started in (
        ((), TRAINS),
        (("--epochs", "1"), [*TRAINS, "--epochs", "1"]),
        (("x.py", "--a b"), ["x.py", "--a b"]),
    ):
        done = subprocess.run(["bash", script, *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        flags, program = ["--kill-on-bad-exit=1", "--label", "bash", "-c"], ["bash", ".venv/bin/python"]
        assert done.stdout.splitlines() == [*flags, waits(), *program, *started, "0"]
    outside = subprocess.run(
        ["bash", script], env={"PATH": environment["PATH"]}, capture_output=True, text=True
    )
    assert outside.returncode != 0 and "start this script with sbatch" in outside.stderr


def waits() -> str:
    """The bash program that `deploy/slurm.sh` has each task run."""
    [waits_of_script] = re.findall(r"^waits='(.*)'$", (DEPLOY / "slurm.sh").read_text(), re.MULTILINE)
    return waits_of_script


@pytest.mark.parametrize(
    ("program", "status", "slept"),
    [
        ("print('done')", 0, False),
        ("raise SystemExit('error: broken')", 1, True),
        ("signal.signal(15, lambda *_: sys.exit(143)); print(flush=True); time.sleep(60)", 143, True),
        ("print(flush=True); time.sleep(60)", 143, True),
    ],
)
def test_a_task_keeps_its_programs_status_and_its_signals_and_waits_only_after_a_failure(
    program: str, status: int, slept: bool
) -> None:
    """SLURM signals all processes of a task, so bash too."""
    stand_in = "sleep() { echo slept; }; " + waits()  # for the command of that name
    command = ["bash", "-c", stand_in, "bash", sys.executable, "-c", f"import signal, sys, time; {program}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as task:
        assert task.stdout is not None
        output = task.stdout.readline()
        if status == 143:
            os.killpg(task.pid, signal.SIGTERM)
        output += task.stdout.read()
    assert task.returncode == status
    assert ("slept" in output) == slept


def test_the_batch_scripts_directives_are_whole_and_before_the_first_command() -> None:
    lines = (DEPLOY / "slurm.sh").read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert directives and max(directives) < first
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", lines[i]) for i in directives)
