"""What starts the sections on a cluster: valid objects and scripts, and the names that JAX looks for."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import pytest
import tyro
import yaml

from jaxperf import flags, script

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SCHEMA = json.loads((Path(__file__).parent / "fixtures" / "kubernetes" / "schema.json").read_text())

SAVING = ("--checkpoints", "checkpoints/7", "--resume")
POD = ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec")  # of the JobSet


def objects() -> dict[str, dict[str, Any]]:
    found = list(yaml.safe_load_all((DEPLOY / "jobset.yaml").read_text()))
    return {each["kind"]: each for each in found}


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
    found = objects()
    jobset, service, role = found["JobSet"], found["Service"], found["Role"]
    name, [workers] = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    # JAX's coordinator is JOB-0.JOBSET, so DNS must know the pods under the JobSet's name
    assert name == service["metadata"]["name"] == jobset["spec"]["network"]["subdomain"]
    assert service["spec"]["selector"] == {"jobset.sigs.k8s.io/jobset-name": name}
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    # it counts the processes by the job's parallelism, so there is one job
    assert (workers["replicas"], job["completionMode"]) == (1, "Indexed")
    assert job["parallelism"] == job["completions"]
    verbs = {resource: rule["verbs"] for rule in role["rules"] for resource in rule["resources"]}
    assert "list" in verbs["pods"] and "get" in verbs["jobs"]
    account = job["template"]["spec"]["serviceAccountName"]
    assert [s["name"] for s in found["RoleBinding"]["subjects"]] == [account]
    assert found["RoleBinding"]["roleRef"]["name"] == role["metadata"]["name"]
    command = job["template"]["spec"]["containers"][0]["command"]
    assert (ROOT / command[1]).is_file()


@dataclass(frozen=True)
class Trains:
    """The flags of a section that trains."""

    saving: Annotated[script.Saving, tyro.conf.OmitArgPrefixes] = script.Saving()


def test_pods_that_are_started_again_go_on_from_checkpoints_that_outlived_them() -> None:
    """On a volume that all pods mount, with flags that the section takes."""
    found = objects()
    pod: Any = found["JobSet"]
    for key in POD:
        pod = pod[key]
    [container] = pod["containers"]
    words = container["command"][2:]
    told = flags.parse(script.Flags[Trains], args=words, default=script.Flags(config=Trains()), prog="x")
    saving = told.config.saving
    assert found["JobSet"]["spec"]["failurePolicy"]["maxRestarts"] > 0 and saving.resume
    [mount] = [m for m in container["volumeMounts"] if saving.checkpoints.is_relative_to(m["mountPath"])]
    [volume] = [v for v in pod["volumes"] if v["name"] == mount["name"]]
    claim = found["PersistentVolumeClaim"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert told.json.is_relative_to(mount["mountPath"])


def test_the_batch_script_starts_what_it_is_told_under_srun(tmp_path: Path) -> None:
    """With an `srun` of our own that prints its words: bash runs the whole script."""
    script, srun = DEPLOY / "slurm.sh", tmp_path / "srun"
    srun.write_text('#!/bin/bash\nprintf "%s\\n" "$@"; env | grep -ic _proxy= || true\n')
    srun.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(ROOT)}
    environment |= {"SLURM_JOB_ID": "7", "https_proxy": "http://proxy"}
    for words, started in (
        ((), ["experiments/multiple_gpus.py", "--json", "results/multiple_gpus-7.json", *SAVING]),
        (
            ("--keep", "1"),
            [
                "experiments/multiple_gpus.py",
                "--json",
                "results/multiple_gpus-7.json",
                *SAVING,
                "--keep",
                "1",
            ],
        ),
        (("x.py", "--a b"), ["x.py", "--a b"]),
    ):
        done = subprocess.run(["bash", script, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        flags = ["--kill-on-bad-exit=1", "--label", ".venv/bin/python"]
        assert done.stdout.splitlines() == [*flags, *started, "0"]
    outside = subprocess.run(
        ["bash", script], env={"PATH": environment["PATH"]}, capture_output=True, text=True
    )
    assert outside.returncode != 0 and "start this script with sbatch" in outside.stderr


def test_the_batch_scripts_directives_are_whole_and_before_the_first_command() -> None:
    lines = (DEPLOY / "slurm.sh").read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    directives = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert directives and max(directives) < first
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", lines[i]) for i in directives)
