"""Command lines: real ones with words changed, dropped, doubled, invented."""

from __future__ import annotations

import random

import click

from ratrain.cli.main import ratrain

BASE: tuple[tuple[str, ...], ...] = (
    ("models",),
    ("models", "llama-2-7b", "--sequence", "4096"),
    ("models", "config.json", "--json"),
    ("clusters",),
    ("clusters", "mt3000", "--json"),
    ("clusters", "cluster.toml"),
    ("data", "job.toml", "--sample", "2", "--cache", "fresh", "--verify"),
    ("plan", "job.toml", "-o", "out/plan.json", "--top", "3", "--json"),
    ("explain", "plan.json", "--json"),
    ("program", "job.toml", "--form", "csv", "-o", "out/p.csv", "--schedule", "1f1b"),
    ("program", "job.toml", "--without", "update-prefetch", "--form", "text"),
    ("verify", "small.program", "--json"),
    ("verify", "small.csv"),
    ("verify", "sent.csv", "--messages", "pair", "--times", "F=1,message=0.1", "--json"),
    ("schedules", "form.toml", "--json"),
    ("convert", "sailor", "--training", "sailor/training_config.json", "--cluster",
     "sailor/basic_cluster_config.json", "--plan", "sailor/plan.json", "--rank", "1", "--profile",
     "GH-96=sailor/profile.json", "--model", "opt-350m", "--like", "GH-96=gh200-deepspeed", "-o",
     "out/converted", "--json"),
    ("report", "run", "-o", "out/page.html", "--json"),
    ("report", "plan.json", "--output", "out/page.html"),
    ("schema", "job", "--json"),
    ("verify", "long.program", "--json"),
    ("simulate", "job.toml", "--steps", "3", "--trace", "out/t.json", "--svg", "out/s.svg"),
    ("simulate", "plan.json", "--timeline", "out/t.timeline", "--picture"),
    ("train", "job.toml", "--prepare-only", "--run", "new", "--steps", "4", "--threads", "1"),
    ("train", "job.toml", "--prepare-only", "--run", "new", "--plan", "job-plan.json", "--json"),
    ("train", "job.toml", "--resume", "--run", "run", "--prepare-only", "--restarts", "1"),
    ("simulate", "job.toml", "--set", "train.steps=3", "--set", "schedule.name=gpipe"),
    ("data", "job.toml", "--set", 'data.files=["text.txt"]', "--cache", "fresh"),
    ("profile", "--strict", "--micro-batch", "0,1", "--layers", "config.json", "-o", "out/p.toml"),
    ("timeline", "run", "--step", "5", "--trace", "out/t.json", "--svg", "out/s.svg"),
    ("compare", "run", "run2", "--json"),
    ("sample", "hf", "--prompt", "a", "--tokens", "3", "--temperature", "0.5", "--seed", "1"),
    ("sample", "run", "--prompt", "a", "--tokens", "2", "--step", "3"),
    ("export", "run", "out/hf", "--step", "3", "--dtype", "bf16"),
    ("checkpoints", "run", "--verify", "--json"),
    ("checkpoints", "run/checkpoints/step-00000003", "--compare",
     "run2/checkpoints/step-00000003"),
    ("validate", "runs.csv", "--rows", "--json"),
    ("noc", "collective", "reduce", "--shape", "2x2", "--size", "1KiB", "--batches", "2"),
    ("noc", "collective", "multicast", "--algorithm", "hw", "--op", "add", "--format", "fp16",
     "--shape", "2x2", "--size", "256"),
    ("noc", "sweep", "--mesh", "2x2", "--loads", "0.1,0.2", "--window", "200", "--seed", "1"),
    ("noc", "gemm", "summa", "--basis", "rtl", "--json"),
    ("net", "check", "--secret-file", "job.key", "--timeout", "0.1", "--mib", "1", "a.json",
     "b.json"),
)  # fmt: skip
LONG = "n" * 300
VALUES = (
    *("", " ", "0", "-1", "1", "2", "99999999999999999999", "1e999", "nan", "inf", "-inf", "1.5"),
    *("abc", "--", "-", LONG, "a" * 256, "/dev/zero", "/dev/full", ".", "..", "/", "nowhere"),
    *("nowhere/x", "job.toml", "config.json", "run", "pipe", "locked", "x\ny", "\x1b[31m", "é"),
    *("\udcff", "0x10", "1_000", "２", "%s", "~", "a,b", "1:2:0", "0:1:0.5", "0x0", "2x2", "2x"),
    *("train.steps=4", "train.steps=x", "data.files=[", "a.b=1", "x=", "=1", "schedule.name=gpipe"),
    *("99999x99999", "4KiB", "1e9", "-4", "KiB", "999999MiB", "gpipe", "1f1b", "small.program"),
)
UNSAFE = {"--sample-text", "--local", "--keep", "--lab", "--open"}
"""Options that would write megabytes, start processes or a browser, or make networks."""


def option_names(verb: tuple[str, ...]) -> list[str]:
    """Options of a verb as people type them, but the unsafe ones."""
    command: click.Command = ratrain
    context = click.Context(command)
    for word in verb:
        if not isinstance(command, click.Group):
            break
        inner = command.get_command(context, word)
        if inner is None:
            break
        command = inner
    params = (param for param in command.params if isinstance(param, click.Option))
    return [name for param in params for name in param.opts if name not in UNSAFE]


def command_line(rng: random.Random) -> list[str]:
    """One command line."""
    base = rng.choice(BASE)
    words = list(base)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        kind = rng.random()
        at = rng.randrange(1, len(words)) if len(words) > 1 else 1
        if kind < 0.5 and len(words) > 1:
            words[at] = rng.choice(VALUES)
        elif kind < 0.65:
            words.insert(at, rng.choice(VALUES))
        elif kind < 0.75 and len(words) > 1:
            words.pop(at)
        else:
            name = rng.choice(option_names(base[:2]) or ["--json"])
            words += [name, rng.choice(VALUES)] if rng.random() < 0.8 else [name]
    if rng.random() < 0.02:
        words[0] = rng.choice(["simulat", "", "PLAN", LONG, "../x", "plan\n"])
    return guarded([word.replace("\0", "") for word in words])


def guarded(words: list[str]) -> list[str]:
    """The line so that it starts no training and makes no network."""
    if words[:1] == ["train"] and "--prepare-only" not in words:
        words.insert(2, "--prepare-only")
    if words[:1] == ["validate"] and not any(word.endswith(".csv") for word in words):
        words.append("runs.csv")  # without a table: all of them, for minutes
    return words
