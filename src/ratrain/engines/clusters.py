"""A cluster file from what an engine says of its nodes: how many there are of which kind.

No engine knows how fast its nodes compute or how they are linked. The file names for each kind the
profile that `ratrain profile` writes there, and says what to type; links are assumed, and say so.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratrain.engines.ray import LABEL, connect, ray_module
from ratrain.errors import SpecError
from ratrain.readers.json import as_table, parse_json

_ASK_S = 60.0
_GPU = re.compile(r"\bgpu:(?:([^:,()]+):)?(\d+)")
_POD_GPU = "nvidia.com/gpu"
_GPU_PRODUCT = "nvidia.com/gpu.product"


@dataclass(frozen=True)
class Node:
    """A node, as its engine has it. `words`: what it calls it; `gpus`: 0 for one that computes on
    processors, which is one device."""

    words: tuple[str, ...]
    cpus: str
    gpus: int = 0
    gpu: str = ""  # their kind, where the engine knows it

    @property
    def devices(self) -> int:
        return self.gpus or 1


def cluster_text(engine: str, nodes: Sequence[Node], profile_on: str) -> str:
    """The text of a cluster file. `profile_on`: what runs a command on a node of kind `KIND`."""
    if not nodes:
        raise SpecError(f"{engine} has no nodes", place="--from", fix="ask it where it has some")
    shared = {word for word in nodes[0].words if all(word in node.words for node in nodes)}
    hosts = Counter((_kind(node, shared), node.devices, bool(node.gpus)) for node in nodes)
    kinds = list(dict.fromkeys(kind for kind, _, _ in hosts))
    lines = [
        f"# {len(nodes)} nodes of {engine}, written by `ratrain clusters --from {engine}`.",
        "# How fast they compute is not known to it: measure each kind there, once,",
        *(
            f"#   {profile_on.replace('KIND', kind)} ratrain profile -o {kind}.toml"
            for kind in kinds
        ),
        "# (or name a device profile that `ratrain clusters` lists), and their network with",
        "# `ratrain net`: the link below is a guess.",
        f'name = "{engine}"',
        f'source = "nodes as {engine} lists them; speeds by profile; links assumed"',
    ]
    for kind in kinds:
        lines += [
            "",
            "[[device]]",
            f"name = {json.dumps(kind)}",
            f"profile = {json.dumps(kind + '.toml')}",
        ]
    for (kind, devices, _), count in hosts.items():
        lines += [
            "",
            "[[host]]",
            f"name = {json.dumps(kind)}",
            f"device = {json.dumps(kind)}",
            f"devices = {devices}",
            f"count = {count}",
        ]
    lines += [
        "",
        "[links.room]",
        'latency = "50us"',
        'bandwidth = "10Gbit/s"',
        'shared_by = "host"',
        'source = "assumed: 10 Gbit/s Ethernet; measure it with `ratrain net`"',
    ]
    return "\n".join(lines) + "\n"


def _kind(node: Node, shared: set[str]) -> str:
    """What a node's devices are called: by the first word that not all nodes have, which a job can
    ask the engine for; else by their GPU, else by what all are called."""
    apart = [word for word in node.words if word not in shared]
    name = next(filter(None, [*apart, node.gpu, *node.words]), f"cpu-{node.cpus}")
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)


def slurm_nodes(text: str) -> list[Node]:
    """Nodes of `sinfo -h -N -o '%N|%c|%f|%G'`, each once."""
    nodes: dict[str, Node] = {}
    for line in filter(None, text.splitlines()):
        name, cpus, features, resources = (*line.split("|"), "", "", "")[:4]
        words = () if features in ("", "(null)") else tuple(features.split(","))
        found = _GPU.search(resources)
        nodes[name] = Node(words, cpus, int(found[2]) if found else 0, (found and found[1]) or "")
    return list(nodes.values())


def ray_nodes(nodes: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Nodes of `ray.nodes()` that are alive."""
    return [
        Node(
            tuple(filter(None, [node.get("Labels", {}).get(LABEL, "")])),
            f"{node['Resources'].get('CPU', 0):g}",
            int(node["Resources"].get("GPU", 0)),
        )
        for node in nodes
        if node["Alive"]
    ]


def kubernetes_nodes(text: str) -> list[Node]:
    """Nodes of `kubectl get nodes -o json` that take work."""
    body, _ = as_table(*parse_json(text, "kubectl get nodes"))
    return [
        Node(
            tuple(filter(None, [labels.get(LABEL, "")])),
            str(can.get("cpu", "?")),
            int(can.get(_POD_GPU, 0)),
            labels.get(_GPU_PRODUCT, ""),
        )
        for item in body.get("items", [])
        if not item.get("spec", {}).get("unschedulable")
        for labels, can in [(item["metadata"].get("labels", {}), item["status"]["allocatable"])]
    ]


def _asked(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpecError(
            f"`{command[0]}` cannot be run: {error}",
            place="--from",
            fix="type this where the engine's own commands work",
        ) from error
    if done.returncode:
        what = f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()}"
        raise SpecError(what, place="--from", fix="type this where that command works")
    return done.stdout


def _of_slurm() -> str:
    nodes = slurm_nodes(_asked("sinfo", "-h", "-N", "-o", "%N|%c|%f|%G"))
    return cluster_text("slurm", nodes, "srun -N1 -n1 --exclusive -C KIND")


def _of_ray() -> str:
    connect(None)
    return cluster_text("ray", ray_nodes(ray_module().nodes()), "on a node of KIND:")


def _of_kubernetes() -> str:
    nodes = kubernetes_nodes(_asked("kubectl", "get", "nodes", "-o", "json"))
    return cluster_text("kubernetes", nodes, "in a pod on a node of KIND:")


SOURCES: Mapping[str, Callable[[], str]] = {
    "slurm": _of_slurm,
    "ray": _of_ray,
    "kubernetes": _of_kubernetes,
}
"""Who can be asked, and the text of the cluster file then."""
