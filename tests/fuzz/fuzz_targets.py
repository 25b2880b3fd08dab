"""What is fuzzed: files, how each is changed, the commands that read it, and what must follow."""

from __future__ import annotations

import csv
import io
import json
import random
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "convert"))

from fuzz_forms import as_json, as_toml, changed_bytes, doubled_key, reencoded
from fuzz_values import ANY, CHANGE, LONG, REJECT, SAME, Keys, change
from planner_files import COMMANDS

Command = tuple[str, ...]
PREPARE = ("--prepare-only", "--run", "new", "--json")
CHECKPOINT = "run/checkpoints/step-00000006"
RESUME = ("train", "job.toml", "--resume", "--run", "run", "--steps", "6", "--json")
"""Of a run that has come to its end, at step 6: it reads every file and prints the report."""


@dataclass(frozen=True)
class Made:
    """New content of a file: what was done to it, where, and what is expected of a reader."""

    content: bytes
    what: str
    keys: Keys = ()
    expect: str = ANY


Maker = Callable[[bytes, random.Random], Made]


@dataclass(frozen=True)
class Target:
    """A file of the world. `strict`: no key is free, and each of the wrong kind is refused.
    `shown`: the command whose output tells of every value but those under `hidden`."""

    file: str
    make: Maker
    commands: tuple[Command, ...]
    weight: int = 2
    strict: bool = False
    free: tuple[str, ...] = ()
    shown: Command = ()
    hidden: tuple[str, ...] = ()
    named: tuple[str, ...] = ()  # what a message may name besides the file

    def find(self, world: Path) -> Path:
        """The file; the first of its pattern."""
        return sorted(world.glob(self.file))[0]


# ---- makers -----------------------------------------------------------------------------


def toml(content: bytes, rng: random.Random) -> Made:
    """A TOML file changed as a tree, as text or as bytes."""
    text = content.decode()
    kind = rng.random()
    if kind < 0.7:
        changed = change(tomllib.loads(text), rng)
        return Made(
            as_toml(changed.tree).encode(errors="surrogatepass"),
            changed.what,
            changed.keys,
            changed.expect,
        )
    if kind < 0.76 and (doubled := doubled_key(text, rng)):
        return Made(doubled.encode(), "a key twice", (), REJECT)
    if kind < 0.8:
        lines = text.split("\n")
        lines.insert(rng.randrange(len(lines)), rng.choice(["", "# a comment", "   # ключ"]))
        return Made("\n".join(lines).encode(), "a comment", (), SAME)
    return bytewise(content, rng)


def json_text(content: bytes, rng: random.Random) -> Made:
    """A JSON file, the same way."""
    kind = rng.random()
    if kind < 0.75:
        changed = change(json.loads(content), rng)
        return Made(
            as_json(changed.tree).encode(errors="surrogatepass"),
            changed.what,
            changed.keys,
            changed.expect,
        )
    if kind < 0.82 and (doubled := doubled_key(content.decode(), rng)):
        return Made(doubled.encode(), "a key twice", (), REJECT)
    if kind < 0.86:
        table = json.loads(content)
        return Made(json.dumps(table, indent=rng.choice([None, 3])).encode(), "spaces", (), SAME)
    return bytewise(content, rng)


def json_lines(content: bytes, rng: random.Random) -> Made:
    """One line of JSON lines changed, or the file as bytes."""
    if rng.random() < 0.3:
        return bytewise(content, rng)
    lines = content.decode().splitlines()
    number = rng.randrange(len(lines))
    changed = change(json.loads(lines[number]), rng)
    lines[number] = as_json(changed.tree).replace("\n", " ")
    text = "\n".join(lines) + "\n"
    return Made(
        text.encode(errors="surrogatepass"), f"line {number + 1}: {changed.what}", changed.keys
    )


def manifest(content: bytes, rng: random.Random) -> Made:
    """A manifest under a checksum that is right for what it now says."""
    if rng.random() < 0.3:
        return bytewise(content, rng)
    zeros = "0" * 64
    changed = change({**json.loads(content), "sha256": zeros}, rng)
    text = (as_json(changed.tree) + "\n").encode(errors="surrogatepass")
    signed = text.replace(zeros.encode(), sha256(text).hexdigest().encode(), 1)
    return Made(signed, f"signed: {changed.what}", changed.keys)


def corpus_index(content: bytes, rng: random.Random) -> Made:
    """A corpus's index under a right checksum."""
    if rng.random() < 0.3:
        return bytewise(content, rng)
    table = json.loads(content)
    table.pop("checksum")
    changed = change(table, rng)
    try:
        plain = json.loads(as_json(changed.tree))
        checksum = sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    except (ValueError, RecursionError):
        checksum = "0" * 64
    if not isinstance(changed.tree, dict):
        return Made(as_json(changed.tree).encode(), changed.what, changed.keys)
    text = as_json({**changed.tree, "checksum": checksum})
    return Made(text.encode(errors="surrogatepass"), f"signed: {changed.what}", changed.keys)


def safetensors(content: bytes, rng: random.Random) -> Made:
    """A header that says something else of the same bytes, or bytes."""
    if rng.random() < 0.3:
        return bytewise(content, rng)
    length = int.from_bytes(content[:8], "little")
    changed = change(json.loads(content[8 : 8 + length]), rng)
    header = as_json(changed.tree).encode(errors="surrogatepass")
    size = rng.choice([len(header)] * 6 + [2**63, 2**64 - 1, 0, len(header) + 1])
    return Made(
        size.to_bytes(8, "little") + header + content[8 + length :], changed.what, changed.keys
    )


CELLS = (
    *("", "0", "-1", "abc", "1.5", "1e3", "nan", "inf", "9" * 5000, "1" + "0" * 24, " 4 ", "4 4"),
    *(str(2**63), "yes", "no", "maybe", "65536", "gpt-22b", "gpt-23b", '"', "é", "\x00", LONG * 30),
    *("0x10", "１", "1_0", "+4", "../x.toml", "full", "x" * 300),
)


def csv_table(content: bytes, rng: random.Random) -> Made:
    """One cell, one row or one column changed."""
    if rng.random() < 0.2:
        return bytewise(content, rng)
    rows = list(csv.reader(io.StringIO(content.decode())))
    row, column = rng.randrange(len(rows)), rng.randrange(len(rows[0]))
    kind = rng.random()
    expect, keys = ANY, (f"row {row}", rows[0][column])
    if kind < 0.6 and row:
        before, rows[row][column] = rows[row][column], rng.choice(CELLS)
        what = f"{rows[0][column]}: {before} -> {rows[row][column][:30]}"
        after = rows[row][column].strip()
        expect = SAME if after == before.strip() else CHANGE if after else ANY  # ANY: its default
    elif kind < 0.7:
        rows[row].append(rng.choice(["", "1", "x"]))
        what, expect = "a cell more", REJECT
    elif kind < 0.8:
        rows[row].pop()
        what, expect = "a cell less", REJECT
    elif kind < 0.87:
        for each in rows:
            each.append(each[column])
        what, expect = "a column twice", REJECT
    elif kind < 0.94:
        rows[0][column] += rng.choice(["s", " x", "_"])
        what, expect = "a column misspelt", REJECT
    else:
        rows.insert(rng.randrange(1, len(rows)), [])
        what, expect = "a blank row", SAME
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return Made(out.getvalue().encode(), what, keys, expect)


WORDS = (
    *("0", "-1", "1..", "..", "3..1", "0..999999", "0..99999999999", "9" * 5000, "x", "none"),
    *("yes", "no", "0F0", "0B0", "0.9F0", "99F0", "0F99", "0F", "0Q0", "0.0SEND_F0", "a:e"),
    *("b:0..9999999", "z:1", "%", "%2E", "#", "1_000", "1e5", "1.5", "é", "\x0b", "0F0@1", "²"),
    *("(", ")", "( )", "repeats", "repeats 1 2", "repeats 999999 999999", "serves", "budget"),
    *("0F0" * 200, "12345678901234567890", "rank", "stage", "unit", "replica", "0F1000000"),
)


def program(content: bytes, rng: random.Random) -> Made:
    """Words and lines of a program's text, or cells of its CSV."""
    text = content.decode()
    kind = rng.random()
    if kind < 0.15:
        return bytewise(content, rng)
    lines = text.split("\n")
    number = rng.randrange(len(lines))
    if kind < 0.2:
        lines.insert(number, "# a comment")
        return Made("\n".join(lines).encode(), "a comment", (), SAME)
    if kind < 0.35:
        other = rng.choice(lines)
        change_ = rng.choice(
            [lines[:number] + lines[number + 1 :], [*lines, other], lines[:number]]
        )
        return Made("\n".join(change_).encode(), f"line {number + 1} moved")
    mark = "," if "," in lines[number] else " "
    words = lines[number].split(mark)
    for _ in range(rng.choice([1, 1, 2])):
        words[rng.randrange(len(words))] = rng.choice([*WORDS, *words])
    if rng.random() < 0.2:
        words.insert(rng.randrange(len(words) + 1), rng.choice(WORDS))
    lines[number] = mark.join(words)
    return Made("\n".join(lines).encode(), f"line {number + 1}: {lines[number][:60]}")


def bytewise(content: bytes, rng: random.Random) -> Made:
    """Whatever the format: bytes."""
    if rng.random() < 0.12:
        try:
            made, what, expect = reencoded(content, rng)
            return Made(made, what, (), expect)
        except UnicodeDecodeError:
            pass
    made, what, expect = changed_bytes(content, rng)
    return Made(made, what, (), expect)


# ---- targets ----------------------------------------------------------------------------


def _job_commands(job: str) -> tuple[Command, ...]:
    verbs = ("plan", "explain", "program", "verify", "simulate", "schedules", "data")
    both = ((verb, job, *form) for verb in verbs for form in ((), ("--json",)))
    return (*both, ("train", job, *PREPARE), _page(job))


def _page(subject: str, *form: str) -> Command:
    """The page of a job, a plan or a run."""
    return ("report", subject, "-o", "out/page.html", *form)


def _data(name: str) -> tuple[Command, ...]:
    job = f"job-{name}.toml" if name else "job.toml"
    return (("data", job, "--cache", "fresh", "--json"), ("data", job, "--cache", "fresh"))


TIMELINE: tuple[Command, ...] = (
    ("timeline", "run", "--json"),
    ("timeline", "run", "--trace", "out/trace.json", "--svg", "out/step.svg"),
)
COMPARE: tuple[Command, ...] = (
    ("compare", "run", "run2", "--json"),
    ("compare", "run2", "run"),
)
WEIGHTS: tuple[Command, ...] = (
    ("sample", "run", "--prompt", "a", "--tokens", "3", "--json"),
    ("export", "run", "out/hf", "--json"),
)
CHECKPOINTS: tuple[Command, ...] = (
    ("checkpoints", "run", "--json"),
    ("checkpoints", "run", "--verify"),
    ("checkpoints", CHECKPOINT, "--compare", CHECKPOINT.replace("run/", "run2/")),
)
FURTHER: Command = ("train", "job.toml", "--resume", "--run", "run", "--steps", "9", *PREPARE[:1])
REPORT: tuple[Command, ...] = (RESUME, RESUME[:-1], _page("run"), _page("run", "--json"))


def _hf(folder: str) -> tuple[Command, ...]:
    return (
        ("sample", folder, "--prompt", "a", "--tokens", "3", "--json"),
        ("export", folder, "out/hf"),
    )


def _converted(planner: str) -> tuple[Command, ...]:
    words = (*("convert", *COMMANDS[planner]), "-o", "out/converted")
    return (words, (*words, "--json"))


def _of_planner(planner: str, *files: str) -> Iterator[Target]:
    """Files of another planner; an error may be met in the plan that comes of them."""
    for file in files:
        made = json_text if file.endswith(".json") else bytewise
        named = ("plan.json", "cluster.toml", *files, "--")
        yield Target(f"{planner}/{file}", made, _converted(planner), 2, named=named)


_TOPOLOGY = ("noc", "topology", "two-hubs.graphml", "--routes", "two-hubs-routes.csv")
OF_RUN = ("run", "ranks", "checkpoints", "step-", "model minute")
TARGETS: tuple[Target, ...] = (
    Target(
        "job.toml",
        toml,
        _job_commands("job.toml"),
        weight=14,
        strict=True,
        shown=("train", "job.toml", *PREPARE),
        hidden=("layout.layers",),
        named=("config.json", "cluster.toml", "text.jsonl", "held-out", "fresh", "tokenizer"),
    ),
    Target("searched.toml", toml, _job_commands("searched.toml"), 6, strict=True, named=("mixed",)),
    Target(
        "form.toml",
        toml,
        _job_commands("form.toml"),
        8,
        strict=True,
        named=("config.json", "cluster.toml"),
    ),
    Target(
        "cluster.toml",
        toml,
        (
            ("clusters", "cluster.toml", "--json"),
            ("clusters", "cluster.toml"),
            ("simulate", "job.toml", "--json"),
            ("plan", "job.toml"),
        ),
        8,
        strict=True,
        shown=("clusters", "cluster.toml", "--json"),
        named=("job.toml",),
    ),
    Target(
        "profile.toml",
        toml,
        (("clusters", "mixed.toml", "--json"), ("simulate", "searched.toml", "--json")),
        4,
        strict=True,
        named=("mixed.toml", "searched.toml"),
    ),
    Target(
        "measured.toml",
        toml,
        (
            ("clusters", "measured.toml", "--json"),
            ("clusters", "measured.toml"),
            ("simulate", "form.toml", "--set", "cluster.name=measured.toml"),
        ),
        5,
        strict=True,
        named=("form.toml",),
    ),
    Target(
        "config.json",
        json_text,
        (("models", "config.json", "--json"), ("models", "config.json"), ("simulate", "job.toml")),
        6,
        free=("surprise", "Name", "devcies", "__class__", "x", "ключ"),
        named=("job.toml",),
    ),
    Target("gpt2.json", json_text, (("models", "gpt2.json", "--json"),), 2),
    Target("baichuan.json", json_text, (("models", "baichuan.json", "--json"),), 2),
    Target(
        "plan.json",
        json_text,
        (
            ("simulate", "plan.json", "--json"),
            ("verify", "plan.json"),
            ("explain", "plan.json"),
            ("program", "plan.json", "--json"),
            _page("plan.json"),
        ),
        6,
        strict=True,
        shown=("simulate", "plan.json", "--json"),
        hidden=("predicted", "memory_budget"),
        named=("mixed.toml",),
    ),
    Target(
        "job-plan.json",
        json_text,
        (("train", "job.toml", "--plan", "job-plan.json", *PREPARE),),
        4,
        strict=True,
        named=("job.toml", "config.json", "cluster.toml"),
    ),
    Target(
        "small.program",
        program,
        (("verify", "small.program"), ("verify", "small.program", "--json")),
        8,
    ),
    Target(
        "long.program",
        program,
        (("verify", "long.program"), ("verify", "long.program", "--json")),
        6,
    ),
    Target("small.csv", program, (("verify", "small.csv"), ("verify", "small.csv", "--json")), 5),
    Target(
        "sent.csv",
        program,
        (("verify", "sent.csv", "--json"), ("verify", "sent.csv", "--repair", "out/repaired.csv")),
        5,
    ),
    Target(
        "two-hubs.graphml",
        bytewise,
        (_TOPOLOGY, (*_TOPOLOGY, "--json")),
        3,
        named=("two-hubs-routes.csv",),
    ),
    Target("two-hubs-routes.csv", bytewise, (_TOPOLOGY, (*_TOPOLOGY, "--json")), 3),
    Target(
        "runs.csv",
        csv_table,
        (("validate", "runs.csv", "--rows", "--json"), ("validate", "runs.csv")),
        7,
        shown=("validate", "runs.csv", "--rows", "--json"),
        strict=True,
        hidden=("held_out", "vocab"),
    ),
    Target("text.jsonl", json_lines, _data(""), 3),
    Target("text.txt", bytewise, _data("text-txt"), 1),
    Target("text.jsonl.gz", bytewise, _data("text-jsonl-gz"), 2),
    Target("text.parquet", bytewise, _data("text-parquet"), 2),
    Target("saved/data-0.arrow", bytewise, _data("saved"), 2),
    Target("saved/state.json", json_text, _data("saved"), 2, named=("saved",)),
    Target("tokenizer.json", json_text, _data("tokenizer"), 3),
    Target("tokenizer_config.json", json_text, _data("tokenizer"), 1, named=("tokenizer",)),
    Target(
        "cache/*/*/*/index.json",
        corpus_index,
        (("data", "job.toml", "--json"), ("data", "job.toml", "--verify")),
        2,
        named=("job.toml",),
    ),
    Target("cache/*/*/*/tokens.bin", bytewise, (("data", "job.toml", "--verify", "--json"),), 1),
    Target("hf/config.json", json_text, _hf("hf"), 3, named=("hf",)),
    Target("hf/tokenizer.json", json_text, _hf("hf")[:1], 2),
    Target("hf/model.safetensors", safetensors, _hf("hf"), 5, named=("hf",)),
    Target(
        "sharded/model.safetensors.index.json", json_text, _hf("sharded"), 4, named=("sharded",)
    ),
    Target(
        "sharded/model-00002-of-00004.safetensors",
        safetensors,
        _hf("sharded"),
        3,
        named=("sharded",),
    ),
    Target(
        "run/run.json",
        json_text,
        (*TIMELINE, *WEIGHTS, *REPORT, FURTHER),
        5,
        strict=True,
        named=OF_RUN,
    ),
    Target(
        "run/case.json", json_text, (*WEIGHTS, *REPORT, FURTHER), 5, named=(*OF_RUN, "job.toml")
    ),
    Target("run/program.txt", program, (*REPORT, FURTHER), 3, named=OF_RUN),
    Target("run/attempts.jsonl", json_lines, (*COMPARE, *REPORT), 3, named=OF_RUN),
    Target("run/metrics.jsonl", json_lines, (*COMPARE, *REPORT), 5, named=OF_RUN),
    Target("run/predicted.json", json_text, TIMELINE, 5, named=OF_RUN),
    Target("run/prediction.json", json_text, (*TIMELINE, *REPORT), 4, named=OF_RUN),
    Target("run/ranks/records-00001.json", json_text, (*TIMELINE, *REPORT), 5, named=OF_RUN),
    Target(
        "run/checkpoints/best.json", json_text, (*CHECKPOINTS, *REPORT, FURTHER), 2, named=OF_RUN
    ),
    Target(
        f"{CHECKPOINT}/manifest.json",
        manifest,
        (*CHECKPOINTS, *COMPARE, *WEIGHTS, FURTHER),
        6,
        named=OF_RUN,
    ),
    Target(
        f"{CHECKPOINT}/rank-00001.safetensors",
        safetensors,
        (*CHECKPOINTS, *COMPARE, *WEIGHTS),
        3,
        named=OF_RUN,
    ),
    Target(
        "a.json",
        json_text,
        (
            (
                "net",
                "check",
                "--secret-file",
                "job.key",
                "--timeout",
                "0.1",
                "--mib",
                "1",
                "a.json",
                "b.json",
                "--json",
            ),
        ),
        1,
        named=("a", "b", "engine", "NIC"),
    ),
    *_of_planner("grolar", "cluster_info.json", "training_config.json", "model_latencies.json"),
    *_of_planner(
        "metis", "hostfile", "clusterfile.json", "results", "DeviceType.A100_tp1_bs1.json"
    ),
    *_of_planner(
        "sailor", "training_config.json", "basic_cluster_config.json", "plan.json", "profile.json"
    ),
    Target(
        "job.key",
        bytewise,
        (
            (
                "net",
                "check",
                "--secret-file",
                "job.key",
                "--timeout",
                "0.1",
                "--mib",
                "1",
                "a.json",
                "b.json",
            ),
        ),
        1,
        named=("secret", "a.json"),
    ),
)
