"""Printed manifests against what clusters take: the core schemas of Kubernetes, and resource
definitions with their rules, unknown keys refused, without a cluster."""

from __future__ import annotations

import copy
import gzip
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_written import PODS, run_of

from ratrain.engines.groups import HostGroup
from ratrain.engines.kubernetes import Pods, manifest
from ratrain.errors import SpecError

validate = pytest.importorskip(
    "kubernetes_validate", reason="pip install kubernetes-validate: `make test-all` does"
)
jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
celpy = pytest.importorskip("celpy", reason="pip install cel-python: `make test-all` does")

DEFINITIONS = os.environ.get("RATRAIN_CRDS", "")
pytestmark = pytest.mark.skipif(
    not DEFINITIONS,
    reason="RATRAIN_CRDS names no folder of the definitions (*.yaml, *.yaml.gz) of JobSet and "
    "Kubeflow's TrainJob",
)
ONE_KIND, TWO_KINDS = [HostGroup("old", 4, 1)], [HostGroup("old", 2, 1), HostGroup("new", 1, 2)]
Table = dict[str, Any]
ROUND = Pods(PODS.image, PODS.claim, PODS.mount, PODS.memory, 3, runtime="torch-distributed")
KINDS = {
    "Job": (ONE_KIND, PODS),
    "JobSet": (TWO_KINDS, PODS),
    "TrainJob": (ONE_KIND, ROUND),
}


@lru_cache
def definitions() -> dict[tuple[str, str], Table]:
    """Schemas by API version and kind."""
    known: dict[tuple[str, str], Table] = {}
    for path in sorted(Path(DEFINITIONS).glob("*.yaml*")):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for crd in filter(None, yaml.safe_load_all(text)):
            spec = crd["spec"]
            for version in spec["versions"]:
                key = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
                known[key] = version["schema"]["openAPIV3Schema"]
    return known


def strict(schema: Any) -> Any:
    """A schema that refuses keys that it does not know."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    free = made.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(made.get("properties"), dict) and "additionalProperties" not in made and not free:
        made["additionalProperties"] = False
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    return made


def rules(schema: Table, value: Any) -> Iterator[tuple[Table, Any]]:
    """Rules about values that are there; those that compare with what was before are left out."""
    for rule in schema.get("x-kubernetes-validations", []):
        if "oldSelf" not in rule["rule"]:
            yield rule, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from rules(schema.get("properties", {}).get(key, {}), inner)
    if isinstance(value, list):
        for inner in value:
            yield from rules(schema.get("items", {}), inner)


def problems(body: Table) -> list[str]:
    """Why a cluster would refuse a manifest."""
    schema = definitions().get((body["apiVersion"], body["kind"]))
    try:
        if schema is None:
            validate.validate(body, "1.34", strict=True)
            return []
        closed = strict(copy.deepcopy(schema))
        closed["properties"]["metadata"] = {"type": "object", "required": ["name"]}
        jsonschema.Draft7Validator(closed).validate(body)
    except (validate.ValidationError, jsonschema.ValidationError) as error:
        return [str(error)]
    environment = celpy.Environment()
    return [
        rule.get("message", rule["rule"])
        for rule, value in rules(schema, body)
        if not environment.program(environment.compile(rule["rule"])).evaluate(
            {"self": celpy.json_to_cel(value)}
        )
    ]


def printed(kind: str) -> Table:
    groups, pods = KINDS[kind]
    return yaml.safe_load(manifest(run_of(groups, gpus=kind != "JobSet"), pods))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_printed_is_valid(kind: str) -> None:
    body = printed(kind)
    assert body["kind"] == kind
    assert not problems(body)


def pods_of(body: Table) -> Table:
    """The first pod's spec."""
    spec = body["spec"]
    spec = spec["replicatedJobs"][0]["template"]["spec"] if "replicatedJobs" in spec else spec
    return spec["template"]["spec"]


def patched(body: Table) -> Table:
    jobs = body["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    return jobs["replicatedJobs"][0]


BROKEN: list[tuple[str, Callable[[Table], object]]] = [
    ("Job", lambda b: b["spec"].update(completion="4")),
    ("Job", lambda b: b["spec"].update(completions="four")),
    ("Job", lambda b: b["spec"].pop("template")),
    ("Job", lambda b: pods_of(b).pop("containers")),
    ("Job", lambda b: pods_of(b)["containers"][0].pop("name")),
    ("Job", lambda b: pods_of(b)["containers"][0].update(volumeMount=[])),
    ("Job", lambda b: pods_of(b)["containers"][0].update(command="ratrain")),
    ("Job", lambda b: pods_of(b)["containers"][0]["env"][0].update(value=4)),
    ("Job", lambda b: pods_of(b).update(terminationGracePeriodSeconds="long")),
    ("Job", lambda b: b["spec"]["podFailurePolicy"]["rules"][0].pop("action")),
    ("JobSet", lambda b: b["spec"].update(replicatedJob=[])),
    ("JobSet", lambda b: b["spec"]["replicatedJobs"][0].pop("name")),
    ("JobSet", lambda b: b["spec"]["replicatedJobs"][0].pop("template")),
    ("JobSet", lambda b: b["spec"]["failurePolicy"].update(maxRestarts="3")),
    ("JobSet", lambda b: b["spec"]["failurePolicy"]["rules"][0].update(action="Fail")),
    ("JobSet", lambda b: pods_of(b)["containers"][0]["resources"].update(request={})),
    ("TrainJob", lambda b: b["spec"].pop("runtimeRef")),
    ("TrainJob", lambda b: b["spec"]["trainer"].update(numProcPerNode=0)),
    ("TrainJob", lambda b: b["spec"]["trainer"].update(numNodes="4")),
    ("TrainJob", lambda b: b["spec"]["trainer"].update(volumes=[])),
    ("TrainJob", lambda b: b["spec"]["runtimePatches"][0].pop("manager")),
    ("TrainJob", lambda b: patched(b).update(replicas=2)),
    ("TrainJob", lambda b: b["spec"].update(managedBy="nobody")),
]


@pytest.mark.parametrize(
    ("kind", "breaks"), BROKEN, ids=[f"{k}-{n}" for n, (k, _) in enumerate(BROKEN)]
)
def test_what_is_broken_is_not(kind: str, breaks: Callable[[Table], object]) -> None:
    body = printed(kind)
    breaks(body)
    assert problems(body)


def test_a_train_job_has_pods_of_one_kind() -> None:
    with pytest.raises(SpecError, match="all alike"):
        manifest(run_of(TWO_KINDS), ROUND)
