"""One run of every verb, by its path in the tree of commands, and what it must end with.

The inputs are those that `prepare` writes into a folder; trained runs are the terminals' own
(test_verbs_in_a_terminal.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import click
from checkpoint_made import save
from cli_runs import write_job
from planner_files import COMMANDS

from ratrain.cli.main import ratrain

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = str(EXAMPLES / "small.toml")
CHIPS = EXAMPLES / "chips"


GRAPH = """
[graph]
generate = "planted"
nodes = 400
features_width = 16
classes = 4
[model]
hidden = 8
[train]
epochs = 2
[memory]
budget = "290MB"
parts = 4
partitioner = "own"
"""


@dataclass(frozen=True)
class Use:
    """A command line, and what stands on the last screen when it has ended."""

    arguments: str
    verdict: str
    slow: bool = False
    root: bool = False
    bars: int = 1  # at once on the screen, at most
    document: bool = False  # prints JSON in any case, whose texts are as wide as they are


USES = {
    "models": Use("models qwen2.5-32b", "activations of one layer", slow=True),
    "clusters": Use("clusters mixed-sites", "world: "),
    "schema": Use("schema job", "additionalProperties", document=True, slow=True),
    "data": Use("data job.toml --sample 1 --verify", "position 0: sample", slow=True),
    "init job": Use("init job job-{out}.toml", r"try it: ratrain train", slow=True),
    "init example": Use(
        "init example small.toml -o {out}-examples", "try it: ratrain simulate", slow=True
    ),
    "init cluster": Use("init cluster cluster-{out}.toml", r"show it", slow=True),
    "plan": Use(f"plan {SMALL}", r"simulated; .* in all", slow=True),
    "explain": Use(f"explain {SMALL}", "Plans with identical replicas", slow=True),
    "schedules": Use(f"schedules {SMALL}", "fits", slow=True),
    "report": Use(f"report {SMALL} --output {{out}}.html", "html", slow=True),
    "program": Use(f"program {SMALL}", "F", slow=True),
    "verify": Use(f"verify {SMALL}", "sound: ", slow=True),
    "simulate": Use(f"simulate {SMALL} --picture", "fits", slow=True),
    "train": Use("train job.toml --steps 6", "run +runs/job-ratrain", slow=True, bars=2),
    "launch hosts": Use("launch runs/job-ratrain --json", "laptop-1", slow=True, document=True),
    "launch slurm": Use("launch slurm runs/job-ratrain", "submit it: sbatch", slow=True),
    "launch kubernetes": Use(
        "launch kubernetes runs/job-ratrain --image r/x:1", "kubectl apply", slow=True
    ),
    "timeline": Use("timeline runs/job-ratrain", "largest differences", slow=True),
    "check": Use("check job.toml --steps 1 --operators-only --run {out}", "right: ", slow=True),
    "compare": Use(
        "compare runs/job-ratrain runs/job-ratrain-2", "identical bit by bit", slow=True
    ),
    "sample": Use("sample runs/job-ratrain --prompt line --tokens 20", "line", slow=True),
    "export": Use("export runs/job-ratrain {out}", "step 6", slow=True),
    **{
        f"convert {name}": Use(
            " ".join(["convert", *words, "-o", "{out}-folder"]), "what differs", slow=True
        )
        for name, words in COMMANDS.items()
    },
    "noc sweep": Use("noc sweep --mesh 4x4 --loads 0.1,0.2 --window 1000", "link load", slow=True),
    "noc collective": Use("noc collective reduce", "load of the wide links", slow=True),
    "noc gemm": Use("noc gemm summa --simulate 4", "simulated 4x4", slow=True),
    "noc costs": Use("noc costs", "fp32 and fp16"),
    "noc topology": Use(
        f"noc topology {CHIPS}/two-hubs.graphml --routes {CHIPS}/two-hubs-routes.csv",
        "busiest link",
    ),
    "noc reproduce": Use("noc reproduce --models-only", "router area", slow=True),
    "kernels list": Use("kernels list", "attention", slow=True),
    "kernels run": Use("kernels run rmsnorm --cores 2", "FP64|ulp", slow=True),
    "kernels time": Use("kernels time rmsnorm --size rows=64 --size width=512", "bound", slow=True),
    "kernels text": Use(
        "kernels text rmsnorm --size rows=8 --size width=64 --cores 2",
        "store y",
        document=True,
        slow=True,
    ),
    "kernels picture": Use(
        "kernels picture swiglu --size rows=64 --size width=512 --cores 4 -o {out}.svg",
        "svg",
        slow=True,
    ),
    "kernels score": Use("kernels score rows.csv", "worst", slow=True),
    "graph plan": Use("graph plan graph.toml", "proved", slow=True),
    "graph train": Use("graph train graph.toml --run {out}-graph", "run +", slow=True),
    "graph compare": Use("graph compare graph.toml --mode bypass", "gradient error", slow=True),
    "fit": Use(
        "fit --model gpt-neo-2.7b --memory 24GB --host 64GB",
        "fastest: everything in host",
        slow=True,
    ),
    "clean": Use("clean . --dry-run", "nothing"),
    "evaluate": Use("evaluate runs/job-ratrain text.txt", "perplexity", slow=True),
    "checkpoints": Use("checkpoints saved --verify", "verified", slow=True),
    "lab check": Use("lab check cpu-lab --devices 2", "processors", slow=True, root=True),
    "lab run": Use("lab run cpu-lab --devices 2 -- hostname", r"\[1\]", root=True, slow=True),
    "lab chaos": Use(
        "lab chaos job.toml --faults slow --every 1 --lasts 1 --set train.steps=60 "
        f"--set cluster.name={EXAMPLES / 'clusters/two-sites-lab.toml'} --set cluster.devices=4 "
        "--set layout.data=4 --set layout.pipeline=1 --run runs/chaos-{out}",
        "nothing lost: each of 60",
        slow=True,
        root=True,
    ),
    "lab clean": Use("lab clean", "removed|nothing to remove", root=True),
    "net serve": Use(
        "net serve --secret-file key --name a --out {out} --idle 0.5", "address is in"
    ),
    "net check": Use("net check --local 2 --mib 1", r"\[links.room\]", slow=True),
    "reproduce": Use("reproduce scale-out", "assumed where", slow=True),
    "validate": Use("validate korthikanti_memory_gib --rows", r"%", slow=True),
    "profile": Use("profile", "not measured", slow=True),
}


def leaves(command: click.Command = ratrain, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, by its path in the registry: "noc sweep"."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, f"{path} {name}".strip())


def groups() -> list[str]:
    """The paths of the commands that hold others."""
    return sorted({path.rpartition(" ")[0] for path, _ in leaves()} - {""})


def prepare(folder: Path) -> Path:
    """Writes what the command lines name."""
    write_job(folder)
    shutil.copytree(EXAMPLES / "convert", folder, dirs_exist_ok=True)
    (folder / "graph.toml").write_text(GRAPH)
    (folder / "key").write_text("a secret of this test alone")
    measured = (files("ratrain.kernels") / "data/ft-m7032.csv").read_text().splitlines()
    (folder / "rows.csv").write_text("\n".join(measured[:6]) + "\n")
    save(folder / "saved", 4)
    save(folder / "saved", 8)
    return folder
