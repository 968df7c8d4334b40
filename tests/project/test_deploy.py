import copy
import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from experiments import train

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCHEMA = json.loads((Path(__file__).parents[1] / "fixtures" / "kubernetes" / "schema.json").read_text())

POD = ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec")  # of the JobSet
JOBSET = "jobset.sigs.k8s.io/jobset-name"


def objects():
    manifests = list(yaml.safe_load_all((DEPLOY / "jobset.yaml").read_text()))
    return {each["kind"]: each for each in manifests}


def check(each):
    kind = "JobSet" if each["kind"] == "JobSet" else f"V1{each['kind']}"
    jsonschema.validate(each, {**SCHEMA, "$ref": f"#/definitions/{kind}"})


def test_every_object_is_valid_and_a_slip_is_not():
    kinds = "ServiceAccount Role RoleBinding Service PersistentVolumeClaim JobSet"
    assert list(objects()) == kinds.split()
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
        inner = wrong
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            check(wrong)


def test_the_pods_have_the_names_and_rights_that_jax_needs():
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


def test_pods_that_are_started_again_go_on_from_checkpoints_that_outlived_them():
    by_kind = objects()
    pod = by_kind["JobSet"]
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
