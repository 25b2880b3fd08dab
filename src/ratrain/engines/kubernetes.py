"""A run as a Kubernetes manifest: an indexed Job, or a JobSet with one replicated job for each kind
of host; or a TrainJob of Kubeflow's Trainer, whose pods are all alike. A pod is a rank.

Pods find each other by a file in the run's folder, so neither a service nor names are needed. What
they do about exit statuses is that of docs/reference/exit-codes.md: a mistake ends the job, a lost
peer and a saved stop do not count as failures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ratrain.engines.groups import HostGroup, Launchable
from ratrain.engines.places import FIRST, JOB, KIND, WORLD
from ratrain.engines.ray import LABEL
from ratrain.errors import SpecError

_MISTAKES = [2, 3, 4, 7]
_NOT_COUNTED = [5, 75]
_MOST_NAME = 40  # pods add their numbers to it; names of hosts have 63 characters at most


@dataclass(frozen=True)
class Pods:
    """What a manifest needs to know besides the run."""

    image: str
    claim: str  # a PersistentVolumeClaim that all pods can write to
    mount: str  # where it is seen in them: the run's folder is below
    memory: str  # of a rank
    restarts: int
    grace_s: int = 120
    runtime: str = ""  # of Kubeflow's Trainer, which makes the pods; "": Kubernetes itself


def manifest(run: Launchable, pods: Pods) -> str:
    """The YAML text."""
    if not f"{run.run}/".startswith(f"{pods.mount.rstrip('/')}/"):
        raise SpecError(
            f"the run's folder {run.run} is not below {pods.mount}, where pods see the volume",
            place="--mount",
            fix="give the folder, here and in pods, that the volume is seen at",
        )
    if pods.runtime and len(run.groups) > 1:
        raise SpecError(
            "the pods of a TrainJob are all alike, and the plan has hosts of several kinds",
            place="--runtime",
            fix="leave it out: a JobSet has a replicated job for each kind",
        )
    one = _train_job if pods.runtime else _job
    body = one(run, pods) if len(run.groups) == 1 else _job_set(run, pods)
    head = f"# {run.name}, {run.words}. Start it: kubectl apply -f FILE\n"
    return head + "\n".join(_yaml(body)) + "\n"


def _name(text: str) -> str:
    """`text` as what Kubernetes takes for a name."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_MOST_NAME].strip("-")
    return name or "run"


def _job(run: Launchable, pods: Pods) -> dict[str, Any]:
    group = run.groups[0]
    retries = pods.restarts * group.ranks
    spec = _indexed(run, group, 0, pods, retries, _policy([_IGNORED_DISRUPTION, _ignored()]))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": _name(run.name)},
        "spec": {**spec, "podReplacementPolicy": "Failed"},
    }


def _job_set(run: Launchable, pods: Pods) -> dict[str, Any]:
    """A failed pod fails its job, which starts all jobs again; a mistake fails the set."""
    jobs: list[dict[str, Any]] = []
    first = 0
    for number, group in enumerate(run.groups):
        spec = _indexed(run, group, first, pods, 0, _policy([]))
        jobs.append({"name": f"{_name(group.kind)}-{number}", "template": {"spec": spec}})
        first += group.ranks
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": _name(run.name)},
        "spec": {
            "failurePolicy": {
                "maxRestarts": pods.restarts,
                "rules": [
                    {
                        "name": "mistake",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": jobs,
        },
    }


def _train_job(run: Launchable, pods: Pods) -> dict[str, Any]:
    """Its runtime makes a JobSet of one job, "node", whose pods have their numbers as those of any
    indexed Job; what follows a failed pod is the runtime's to say."""
    pod = _pod(run, run.groups[0], 0, pods)
    (container,) = pod["containers"]
    volumes = {
        "volumes": pod["volumes"],
        "terminationGracePeriodSeconds": pod["terminationGracePeriodSeconds"],
        "containers": [{"name": _NODE, "volumeMounts": container["volumeMounts"]}],
    }
    patched = {"name": _NODE, "template": {"spec": {"template": {"spec": volumes}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": _name(run.name)},
        "spec": {
            "runtimeRef": {"name": pods.runtime},
            "trainer": {
                "numNodes": run.ranks,
                "numProcPerNode": 1,
                **{key: container[key] for key in ("image", "command", "env")},
                "resourcesPerNode": container["resources"],
            },
            "runtimePatches": [
                {
                    "manager": "ratrain.dev/launch",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [patched]}}},
                }
            ],
        },
    }


_NODE = "node"
"""What Kubeflow's runtimes call their job, and its container."""
_IGNORED_DISRUPTION = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


def _ignored() -> dict[str, Any]:
    return _on_exit("Ignore", _NOT_COUNTED)


def _on_exit(action: str, statuses: Sequence[int]) -> dict[str, Any]:
    codes = {"containerName": "rank", "operator": "In", "values": list(statuses)}
    return {"action": action, "onExitCodes": codes}


def _policy(rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"rules": [_on_exit("FailJob", _MISTAKES), *rules]}


def _indexed(
    run: Launchable,
    group: HostGroup,
    first: int,
    pods: Pods,
    retries: int,
    policy: Mapping[str, Any],
) -> dict[str, Any]:
    """The spec of a Job whose pods are the ranks of a group."""
    return {
        "completionMode": "Indexed",
        "completions": group.ranks,
        "parallelism": group.ranks,
        "backoffLimit": retries,
        "podFailurePolicy": policy,
        "template": {"spec": _pod(run, group, first, pods)},
    }


def _pod(run: Launchable, group: HostGroup, first: int, pods: Pods) -> dict[str, Any]:
    own_ip = {"fieldRef": {"fieldPath": "status.podIP"}}
    env: list[dict[str, Any]] = [
        {"name": WORLD, "value": str(run.ranks)},
        {"name": FIRST, "value": str(first)},
        {"name": JOB, "value": _name(run.name)},
        {"name": "RATRAIN_ADDRESS", "valueFrom": own_ip},
    ]
    if run.kinds > 1:
        env.append({"name": KIND, "value": group.kind})
    limits = {"memory": pods.memory, **({"nvidia.com/gpu": "1"} if run.gpus else {})}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": pods.grace_s,
        **({"nodeSelector": {LABEL: group.kind}} if run.kinds > 1 else {}),
        "containers": [
            {
                "name": "rank",
                "image": pods.image,
                "command": run.command,
                "env": env,
                "resources": {
                    "requests": {"cpu": str(run.threads), "memory": pods.memory},
                    "limits": limits,
                },
                "volumeMounts": [{"name": "runs", "mountPath": pods.mount}],
            }
        ],
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": pods.claim}}],
    }


def _yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Tables and lists in blocks, everything else as JSON, which YAML includes."""
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, Any]", value).items():
            if _is_block(inner):
                yield f"{indent}{key}:"
                yield from _yaml(inner, indent + "  ")
            else:
                yield f"{indent}{key}: {json.dumps(inner)}"
        return
    for item in cast("Sequence[Any]", value):
        if _is_block(item):
            first, *rest = _yaml(item, indent + "  ")
            yield f"{indent}- {first.lstrip()}"
            yield from rest
        else:
            yield f"{indent}- {json.dumps(item)}"


def _is_block(value: Any) -> bool:
    return isinstance(value, Mapping | list) and bool(cast("Any", value))
