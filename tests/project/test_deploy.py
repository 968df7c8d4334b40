"""What starts a training on a cluster: valid objects and scripts, and the names that JAX looks for."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml

from experiments import train
from jaxperf import distributed

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


class RefusedError(Exception):
    status, reason = 403, "Forbidden"


def client_of(by_kind: dict[str, dict[str, Any]]) -> Any:
    """A client of Kubernetes that knows what is made of the JobSet, and allows what the role allows."""
    of, jobset = SimpleNamespace, by_kind["JobSet"]
    [workers], labels = jobset["spec"]["replicatedJobs"], {JOBSET: jobset["metadata"]["name"]}
    job = of(
        metadata=of(name=f"{labels[JOBSET]}-{workers['name']}-0", labels=labels),
        spec=of(parallelism=workers["template"]["spec"]["parallelism"]),
    )
    owners = [of(controller=True, kind="Job")]
    pod = of(metadata=of(labels={**labels, "job-name": job.metadata.name}, owner_references=owners))

    def asked(resource: str, verb: str, answer: Any) -> Any:
        rules = by_kind["Role"]["rules"]
        if not any(resource in rule["resources"] and verb in rule["verbs"] for rule in rules):
            raise RefusedError
        return answer

    core = of(list_namespaced_pod=lambda **_: asked("pods", "list", of(items=[pod])))
    batch = of(read_namespaced_job=lambda **_: asked("jobs", "get", job))
    client = of(CoreV1Api=lambda: core, BatchV1Api=lambda: batch, exceptions=of(ApiException=RefusedError))
    return of(config=of(load_incluster_config=lambda: None), client=client)


@pytest.fixture
def in_a_pod(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, Any], int], Any]]:
    """`in_a_pod(objects, i)` is what JAX detects in pod `i`; it keeps what it asked until the test ends."""
    from jax._src.clusters import ClusterEnv
    from jax._src.clusters.k8s_cluster import K8sCluster

    cached = [K8sCluster.__dict__[name].__func__ for name in ("_pod", "_job", "_controller")]
    monkeypatch.delenv("JAX_COORDINATOR_PORT", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(K8sCluster, "_namespace", lambda: "default")  # a file in each pod
    monkeypatch.setattr("time.sleep", lambda s: None)  # before it looks for the first pod's name
    for name in ("_core_api", "_batch_api", "_ApiException"):
        monkeypatch.setattr(K8sCluster, name, None, raising=False)

    def forget() -> None:
        for function in cached:
            function.cache_clear()

    def detect(by_kind: dict[str, Any], i: int) -> Any:
        forget()
        service, pods = by_kind["Service"]["metadata"]["name"], [f"jaxperf-workers-0-{n}" for n in range(2)]
        known = {*pods, *(f"{pod}.{service}" for pod in pods)}
        monkeypatch.setattr(socket, "gethostbyname", dict.fromkeys(known, "10.0.0.2").__getitem__)
        monkeypatch.setitem(sys.modules, "kubernetes", client_of(by_kind))
        monkeypatch.setenv("HOSTNAME", pods[i])
        monkeypatch.setenv("JOB_COMPLETION_INDEX", str(i))
        [method] = (distributed._by_cluster() or {}).values()
        return ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, method, 1)

    yield detect
    forget()


def test_jaxs_own_detection_finds_the_processes_of_the_jobset(in_a_pod: Callable[..., Any]) -> None:
    """With a client and names of our own: the names that the JobSet's controller and the service give."""
    for i in range(2):
        assert in_a_pod(objects(), i) == ("jaxperf-workers-0-0.jaxperf:55527", 2, i, None)
    for change in (
        lambda by_kind: by_kind["Role"]["rules"].pop(),  # it may not read the job
        lambda by_kind: by_kind["Service"]["metadata"].update(name="other"),
    ):
        wrong = objects()
        change(wrong)
        with pytest.raises((RuntimeError, KeyError), match=r"403 - Forbidden|jaxperf-workers-0-0\.jaxperf"):
            in_a_pod(wrong, 0)


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
