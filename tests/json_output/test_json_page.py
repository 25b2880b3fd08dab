"""docs/reference/json.md and what `--json` prints, verb by verb."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from cli_runs import here, ratrain_arguments, write_job
from documented import documented, paths_of
from planner_files import COMMANDS, EXAMPLES

from ratrain.check.call import Call
from ratrain.check.kept import keep_call
from ratrain.check.rows import Where
from ratrain.cli.main import VERBS, ratrain
from ratrain.lab.needs import missing
from ratrain.profile import machine
from ratrain.profile.attention import AttentionTime
from ratrain.profile.doubt import Doubt
from ratrain.profile.links import MessageTime
from ratrain.profile.machine import MachineProfile
from ratrain.profile.products import ProductTime

GRAPH = str(Path(__file__).parents[2] / "examples" / "graph" / "graph.toml")
SMALL = str(Path(__file__).parents[2] / "examples" / "small.toml")
_CHIPS = Path(__file__).parents[2] / "examples" / "chips"
TWO_HUBS = [
    str(_CHIPS / "two-hubs.graphml"),
    "--routes",
    str(_CHIPS / "two-hubs-routes.csv"),
]
TWO_KINDS = str(Path(__file__).parents[2] / "examples" / "unequal.toml")
UNEQUAL = str(Path(__file__).parents[2] / "examples" / "unequal-replicas.json")
SAVED = "checkpoints/step-00000004"
IN_A_TIER = ("--schedule", "gpipe", "--no-calibrate", "--set", "schedule.optimizer_tier=host")
HELD_OUT = ["--set", 'data.validation=["held-out.txt"]', "--set", "train.validate_every=2"]
HELD_OUT += ["--set", "train.sample_every=2", "--set", 'train.prompts=["a"]']
HELD_OUT += ["--set", "train.sample_tokens=3"]
Words = list[str]
TWO_SITES = Path(__file__).parents[2] / "examples" / "clusters" / "two-sites-lab.toml"

BETWEEN_SITES = ["--set", f"cluster.name={TWO_SITES}", "--set", "cluster.devices=4"]
BETWEEN_SITES += ["--set", "layout.pipeline=1", "--set", "layout.data=4", "--no-calibrate"]
BETWEEN_SITES += ["--set", "schedule.average_every=2", "--set", "schedule.averages=early-start"]
BETWEEN_SITES += ["--set", "schedule.average_between=sites"]

QUICK: dict[str, list[Words]] = {
    "error": [["simulate", "nothing.toml"], ["simulat"], ["plan"]],
    "init cluster": [["init", "cluster", "here.toml"]],
    "init example": [["init", "example"], ["init", "example", "small.toml", "-o", "examples"]],
    "models": [["models"], ["models", "llama-3.1-8b"], ["models", "mixtral-8x7b"]],
    "clusters": [
        ["clusters"],
        *(
            ["clusters", name]
            for name in ("cpu-lab", "a100-80g-dgx", "mixed-sites", "sailor-gh200")
        ),
    ],
    "data": [["data", "job.toml", "--sample", "1"]],
    "plan": [["plan", SMALL, "-o", "plan.json"], ["plan", TWO_KINDS]],
    "clean": [["clean", "."], ["clean", ".", "--dry-run"]],
    "fit": [
        ["fit", "--model", "gpt-neo-2.7b", "--memory", "24GB", "--host", "64GB", "--disk", "1TB"],
    ],
    "explain": [["explain", "small-plan.json"], ["explain", UNEQUAL]],
    "program": [["program", SMALL], ["program", SMALL, "--form", "csv", "-o", "small.csv"]],
    "schedules": [
        ["schedules", SMALL],
        ["schedules", SMALL, "--search", "--evaluations", "60", "--save", "mine.csv"],
        ["schedules", UNEQUAL, "--search", "--evaluations", "60"],
    ],
    "verify": [
        ["verify", SMALL],
        ["verify", "broken.program"],
        ["verify", "broken.csv"],
        ["verify", "broken.csv", "--repair", "repaired.csv"],
    ],
    "simulate": [
        ["simulate", SMALL],
        ["simulate", SMALL, "--without", "update-prefetch"],
        ["simulate", UNEQUAL],
    ],
    "report": [["report", SMALL, "-o", "page.html"]],
    **{f"convert {name}": [["convert", *words, "-o", "made"]] for name, words in COMMANDS.items()},
    "noc sweep": [["noc", "sweep", "--mesh", "4x4", "--loads", "0.1"]],
    "noc collective": [["noc", "collective", "reduce", "--shape", "2x2", "--size", "1KiB"]],
    "noc gemm": [["noc", "gemm", "summa", "--simulate", "4"], ["noc", "gemm", "fcl"]],
    "noc costs": [["noc", "costs"]],
    "noc topology": [["noc", "topology", *TWO_HUBS], ["noc", "topology", *TWO_HUBS, "--chip"]],
    "noc reproduce": [["noc", "reproduce", "--models-only"]],
    "graph plan": [["graph", "plan", GRAPH]],
    "kernels list": [["kernels", "list"]],
    "kernels run": [["kernels", "run", "gemm-f16"]],
    "kernels time": [["kernels", "time", "rmsnorm"]],
    "kernels text": [["kernels", "text", "rmsnorm"]],
    "kernels picture": [["kernels", "picture", "rmsnorm", "-o", "kernel.svg"]],
    "kernels score": [["kernels", "score", "measured.csv"]],
}
SLOW: dict[str, list[Words]] = {
    "init job": [["init", "job", "begin.toml", "--data", "text.txt", "--cluster", "cpu-lab"]],
    "data": [["data", "--sample-text", "text.jsonl"], ["data", "job.toml", "--sample", "1"]],
    "train": [
        ["train", "job.toml", "--run", "first", *HELD_OUT],
        ["train", "job.toml", "--run", "other", *IN_A_TIER],
        ["train", "job.toml", "--run", "prepared", "--prepare-only"],
        ["train", "job.toml", "--run", "sites", *BETWEEN_SITES],
    ],
    "graph train": [["graph", "train", GRAPH, "--epochs", "2"]],
    "graph compare": [["graph", "compare", GRAPH, "--epochs", "1"]],
    "launch hosts": [["launch", "first"]],
    "launch slurm": [["launch", "slurm", "first"]],
    "launch ray": [["launch", "ray", "first"]],
    "launch kubernetes": [["launch", "kubernetes", "first", "--image", "registry.example/x:1"]],
    "timeline": [["timeline", "first"]],
    "compare": [["compare", "first", "other"]],
    "check": [
        ["check", "job.toml", "--steps", "1", "--run", "compared"],
        ["check", "--replay", "kept"],
    ],
    "sample": [["sample", "first", "--prompt", "line "]],
    "evaluate": [["evaluate", "first", "text.txt"]],
    "export": [["export", "first", "weights", "--step", "4"]],
    "checkpoints": [
        ["checkpoints", "first"],
        ["checkpoints", f"first/{SAVED}", "--compare", f"other/{SAVED}"],
    ],
    "net check": [["net", "check", "--local", "2", "--mib", "1"]],
    "reproduce": [["reproduce", "ablation"]],
    "validate": [["validate"]],
}
LAB: dict[str, list[Words]] = {
    "lab check": [["lab", "check", "lab-mixed", "--devices", "2"]],
    "lab run": [["lab", "run", "lab-mixed", "--devices", "2", "--", "true"]],
    "lab chaos": [
        [
            *("lab", "chaos", "job.toml", "--faults", "kill", "--every", "1"),
            *("--set", f"cluster.name={TWO_SITES}", "--set", "cluster.devices=4"),
            *("--set", "layout.pipeline=1", "--set", "layout.data=4", "--set", "train.steps=60"),
        ]
    ],
    "lab clean": [["lab", "clean"]],
}
APART = ("net serve", "profile", "rank")
"""Verbs with a test of their own."""


def check(verb: str, bodies: list[dict[str, Any]], *, all_forms: bool = True) -> None:
    """Refuses documents of a verb whose keys are not those of its section. `all_forms`: they show
    all that the command line can choose."""
    keys = documented()[verb]
    came: set[str] = set()
    for body in bodies:
        assert next(iter(body)) == "schema" and body["schema"] == f"ratrain {verb} 1", body
        paths = set(paths_of(body)) - {"schema"}
        for path in paths:
            known = [key for key in keys if key.covers(path) or key.is_below(path)]
            assert known, f"{verb}: {path} is not documented"
        for key in keys:
            there = any(key.covers(path) or key.is_below(path) for path in paths)
            assert there or not key.always, f"{verb}: {key.path} did not come out"
            if any(key.covers(path) or key.path == f"{path}[]" for path in paths):
                came.add(key.path)
    absent = [key.path for key in keys if key.said_with and key.path not in came]
    assert not (all_forms and absent), f"{verb}: {absent} never came out"


def leaves(group: click.Group, before: str = "") -> Iterator[str]:
    """Every verb that prints, by its whole name."""
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from leaves(command, f"{before}{name} ")
            else:
                yield f"{before}{name}"


def test_every_verb_has_a_section_and_is_tried() -> None:
    verbs = set(leaves(ratrain))
    assert {verb.partition(" ")[0] for verb in verbs} == set(VERBS)
    verbs -= {"schema"}  # what it prints is a JSON schema, and nothing around it
    assert set(documented()) == {*verbs, "error"}
    assert {*QUICK, *SLOW, *LAB, *APART} == {*verbs, "error"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("json")
    write_job(made, steps=4)
    shutil.copytree(EXAMPLES, made, dirs_exist_ok=True)
    (made / "measured.csv").write_text(
        "id,level,dtype,mode,M,K,N,cores,KA,value,note\nA1,uk,f64,NN,6,64,48,1,64,159.03,\n"
    )
    product = Call(torch.ops.aten.mm.default, (torch.ones(2, 3), torch.ones(3, 2)), {})
    keep_call(made / "kept", product, [torch.zeros(2, 2)], "cpu", asdict(Where()))
    (made / "held-out.txt").write_text("".join(f"{n} and {n} is {2 * n}.\n" for n in range(99)))
    return made


@pytest.fixture
def printed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """What a command line prints with --json, in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    def run(words: Words) -> dict[str, Any]:
        end = words.index("--") if "--" in words else len(words)
        monkeypatch.setattr(sys, "argv", ["ratrain", *words[:end], "--json", *words[end:]])
        ran = here(capsys)
        assert ran.out, ran.err
        return ran.body

    return run


@pytest.mark.slow
@pytest.mark.parametrize("verb", QUICK)
def test_a_verbs_keys_are_the_documented_ones(verb: str, printed: Any, folder: Path) -> None:
    if verb == "verify":
        text = printed(["program", SMALL, "--form", "text"])["program"]
        (folder / "broken.program").write_text(text.replace(" 0SEND_F3", ""))
        written = "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n"
        (folder / "broken.csv").write_text(written)
    if verb == "explain":
        printed(["plan", SMALL, "-o", "small-plan.json"])
    bodies = [printed(words) for words in QUICK[verb]]
    check(verb, bodies, all_forms=verb != "data")  # to collect a sample text takes seconds


@pytest.mark.slow
def test_the_keys_of_verbs_that_train_measure_and_reproduce(printed: Any) -> None:
    for verb, commands in SLOW.items():
        check(verb, [printed(words) for words in commands])


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(bool(missing()), reason=f"no lab on this machine: {'; '.join(missing())}")
def test_the_keys_of_a_lab(printed: Any) -> None:
    for verb, commands in LAB.items():
        check(verb, [printed(words) for words in commands])


@pytest.mark.slow
def test_the_keys_of_a_profile(printed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real layers, and the rest made up: measuring all of it takes half a minute."""
    times = MessageTime(1024, 1e-5), MessageTime(1 << 20, 1e-3)
    bare = MachineProfile(
        name="cpu",
        products=(ProductTime("numpy", "cpu", "fp32", 64, 64, 64, 1e-4),),
        launch_s=1e-6,
        memory_bytes_per_s=8e9,
        capacity_bytes=16_000_000_000,
        device_copy_bytes_per_s=None,
        messages=times,
        latency_s=1e-5,
        bandwidth_bytes_per_s=1e9,
        disk_free_bytes=10**9,
        disk_write_bytes_per_s=1e8,
        disk_read_bytes_per_s=1e8,
        missing=("GPU: none",),
        attention=(AttentionTime("cpu", "fp32", 1, 8, 512, 64, 1e-3, 2e-3),),
        doubts=(Doubt("launch", "it varied"),),
    )
    monkeypatch.setattr(machine, "measure", lambda *_: bare)
    words = ["profile", "--layers", "tiny-llama", "--sequence", "32", "--micro-batch", "1"]
    check("profile", [printed(words)])


def test_the_keys_of_a_host_that_waits(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a secret of more than sixteen bytes\n")
    key.chmod(0o600)
    words = ["net", "serve", "--secret-file", key, "--name", "a", "--out", tmp_path / "a.json"]
    done = subprocess.run(
        ratrain_arguments(*words, "--idle", "0.1", "--json"),
        capture_output=True,
        text=True,
        check=False,
    )
    body = json.loads(done.stdout)
    check("net serve", [body])
    assert body["address"] == json.loads((tmp_path / "a.json").read_text())
