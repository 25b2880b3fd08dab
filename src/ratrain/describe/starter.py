"""A job file to begin with: it runs as it is, and every value it could have is listed in it.

Values in use are written out; the rest are comments that show the default.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratrain.describe.units import format_bytes


@dataclass(frozen=True)
class Starter:
    """What a job file is made for. Names of files are as the file shall have them."""

    model: str  # a preset, or a config.json
    sequence_length: int
    cluster: str
    devices: int
    dtype: str
    files: tuple[str, ...]
    tokenizer: str = "bytes"
    weights: str | None = None  # a Hugging Face folder to start from
    validation: tuple[str, ...] = ()
    made_by: str = "ratrain init job"


@dataclass(frozen=True)
class _Line:
    """A key with its value; `given`: whether it is in use, else a comment with the default."""

    key: str
    value: Any
    says: str
    given: bool = False


@dataclass(frozen=True)
class _Table:
    name: str
    says: str
    lines: Sequence[_Line] = field(default_factory=tuple[_Line, ...])
    given: bool = True


def job_text(starter: Starter) -> str:
    """The file's text."""
    head = [
        f"# Written by `{starter.made_by}`. Try `ratrain plan FILE`, then `ratrain train FILE`.",
        "# Lines that begin with `#` and a key show its default. Paths are relative to this file.",
        "# Any value can be overridden for one run: `ratrain train FILE --set train.steps=10`.",
    ]
    lines = [line for table in _tables(starter) for line in _shown(table)]
    return "\n".join([*head, *lines]) + "\n"


def _tables(s: Starter) -> Iterable[_Table]:
    sequences = 8 * s.devices
    yield _Table(
        "model",
        "What is trained. `ratrain models` lists the presets.",
        (
            _Line("name", s.model, "a preset, or a Hugging Face config.json", True),
            _Line("sequence_length", s.sequence_length, "tokens", True),
        ),
    )
    yield _Table(
        "cluster",
        "The hardware. `ratrain clusters` lists presets; `ratrain init cluster` "
        "describes this machine.",
        (
            _Line("name", s.cluster, "a preset, or a cluster file", True),
            _Line("devices", s.devices, "how many devices to use", True),
        ),
    )
    yield _Table(
        "batch",
        "One step's sequences, over all replicas.",
        (
            _Line("sequences", sequences, "", True),
            _Line("micro_batch", 1, "sequences that a replica computes at once"),
        ),
    )
    yield _Table(
        "layout",
        "Without it, RATrain finds a fast layout that fits, and its micro-batch.",
        (
            _Line("pipeline", s.devices, "stages: consecutive layers on one device"),
            _Line("data", 1, "replicas"),
            _Line("tensor", 1, "devices that share each layer"),
            _Line("virtual", 1, "stages on each device"),
            _Line("layers", "equal", 'or "balanced", or a list with one number per stage'),
            _Line("sequence_parallel", False, "a tensor group divides its sequences"),
            _Line("joined", (), "micro-batches each stage computes at once; default: one each"),
        ),
        given=False,
    )
    yield _schedule(s)
    yield _train(s)
    yield _data(s)
    yield _Table(
        "checkpoint",
        "What is saved, and when. The last step always is.",
        (
            _Line("every", 50, "steps between checkpoints; 0: only after the last step", True),
            _Line("keep", 2, "latest checkpoints to keep, besides the best one"),
            _Line("disks", "shared", 'or "per-host": hosts without a common disk'),
        ),
    )


def _schedule(s: Starter) -> _Table:
    return _Table(
        "schedule",
        "How a step runs. `ratrain schedules` compares schedules before anything runs.",
        (
            _Line("name", "ratrain", 'the strategy: "1f1b", "gpipe", "zb-h1", ... too'),
            _Line("dtype", s.dtype, '"fp32", "bf16" or "fp16"; master weights are fp32', True),
            _Line("dtypes", {}, 'device kinds that compute in another: { old = "fp32" }'),
            _Line(
                "memory_budget",
                format_bytes(8e9).replace(" ", ""),
                "per device; default: all its memory",
            ),
            _Line("without", [], "passes to leave out"),
            _Line("skeleton", "1f1b", "the compute order; default: the strategy's"),
            _Line("passes", ["layerwise-state-pipeline"], "the passes; default: the strategy's"),
            _Line("backend", "torch", "what executes the program"),
            _Line("recovery", "auto", "which stages recompute activations"),
            _Line("attention", "flash", '"stored" keeps attention scores for backward'),
            _Line("recover_heads", False, "recompute the head too; default: the strategy's"),
            _Line("recovery_buffer", 2, "layers recomputed ahead of their backward"),
            _Line("collective", "auto", "or direct, ring, hierarchical; default: direct"),
            _Line("gradient_dtype", "fp32", "dtype of accumulated gradients; default: as dtype"),
            _Line("gradient_wire", s.dtype, "dtype of gradients when sent; default: as dtype"),
            _Line(
                "boundary_wire", s.dtype, "dtype of tensors sent between stages; default: as dtype"
            ),
            _Line("optimizer_tier", "device", '"host" or "disk": its states wait there'),
            _Line("view_tier", "device", "the same of weights, beside an optimizer_tier"),
            _Line("gradient_tier", "device", "the same of gradients that add up"),
            _Line("activation_tier", "device", "the same of what backward needs"),
            _Line("error_feedback", False, "send what rounding took from gradients a step later"),
            _Line("mirror", False, "another rank keeps each one's optimizer states too"),
            _Line("average_every", 4, "steps between weight averages; default: average gradients"),
            _Line("averages", "early-start", '"local-sgd" or "dreamddp": see average_every'),
            _Line("average_between", "sites", "who trains apart; default: each replica"),
            _Line("average_turns", {}, "each unit's step of a period; default: as costs least"),
            _Line("average_wire", "int8", "or bf16, int4, with an outer step; default: fp32"),
            _Line("average_exposed", 0.05, "the planner chooses average_every: what may wait"),
            _Line("gradient_accumulation", "auto", '"local" or "sharded"'),
            _Line(
                "gradient_bucket",
                "25MB",
                "gradients are sent in buckets; default: whole if they fit",
            ),
            _Line("sharding", 2, "ZeRO stage 0 to 3; default: the strategy's"),
            _Line("sequence_parallel", False, "what the planner may choose; default: either"),
            _Line("replicas", "identical", "what the planner may choose; default: any"),
        ),
    )


def _train(s: Starter) -> _Table:
    rate = 2e-5 if s.weights else 3e-4
    weights = s.weights or "path/to/model"
    return _Table(
        "train",
        "The optimizer, and its learning rate schedule.",
        (
            _Line("steps", 100, "", True),
            _Line("learning_rate", rate, "the peak, after the warm-up", True),
            _Line("warmup_steps", 10, "", True),
            _Line("rate_schedule", "cosine", '"linear", "constant" or "wsd"'),
            _Line("final_rate", 0.1, "fraction of learning_rate at the last step"),
            _Line("decay_part", 0.2, '"wsd" only: fraction of the steps, the last, that decay'),
            _Line("outer_learning_rate", 0.7, "of DiLoCo's outer step; needs early-start"),
            _Line("outer_momentum", 0.9, "of the same"),
            _Line("clip_norm", 1.0, "global norm of the gradient; default: no clipping", True),
            _Line("weight_decay", 0.1, "of matrices only"),
            _Line("dropout", 0.0, "of what layers add, and of the embedding"),
            _Line("optimizer", "adamw", "or adamw-8bit, sgd, lion, adafactor, muon"),
            _Line("beta1", 0.9, ""),
            _Line("beta2", 0.95, ""),
            _Line("epsilon", 1e-8, ""),
            _Line("seed", 0, "for initial weights and sample order"),
            _Line("weights", weights, "a Hugging Face folder to start from", bool(s.weights)),
            _Line("lora", {}, "train adapters alone: { rank = 8, alpha = 16, targets = [] }"),
            _Line("balance_loss", 0.0, "of experts, in the loss; default: as the model says"),
            _Line("freeze", [], 'names or patterns: ["embed_tokens", "layers.3"]'),
            _Line("train_only", [], 'the same, of what alone is trained: ["*norm"]'),
            _Line("validate_every", 0, "steps between validations; needs [data] validation"),
            _Line("sample_every", 0, "steps between samples of text; needs prompts"),
            _Line("prompts", [], 'what the model goes on with: ["The "]'),
            _Line("prompts_file", "prompts.txt", "more of them, a line each"),
            _Line("sample_tokens", 40, "of each; as many forward passes"),
            _Line("publish_every", 0, "steps between versions for those who follow the weights"),
            _Line("publish_nics", "loopback", '"all", or addresses, for followers elsewhere'),
            _Line("loss_scale", 65536.0, "fp16 only: the initial dynamic loss scale"),
            _Line("overflow", "step", 'fp16 only: an overflow skips a whole "step" or a "unit"'),
            _Line("tls", "off", 'between hosts: "secret", or a folder of certificates'),
            _Line("network", "sockets", 'or "direct": NCCL between GPUs, gloo between others'),
            _Line("timeout", "300s", "how long a rank waits for a silent peer"),
            _Line("device", "auto", '"cpu" or "cuda"; left out: as the cluster file says'),
            _Line("share_gpu", False, "several ranks of a host may compute on one GPU"),
            _Line("graphs", True, "on a GPU: compute is recorded once and replayed"),
        ),
    )


def _data(s: Starter) -> _Table:
    held_out = list(s.validation) or ["held-out.jsonl"]
    return _Table(
        "data",
        "Text: .txt, .md, source code, .jsonl (.gz too), .parquet, .arrow, saved datasets.",
        (
            _Line("files", list(s.files), "names or patterns", True),
            _Line("tokenizer", s.tokenizer, '"bytes", or a tokenizer.json', True),
            _Line("text_key", "text", "key or column of JSON lines, Parquet and Arrow"),
            _Line("messages_key", "messages", "of conversations: loss on answers alone"),
            _Line("shuffle", True, ""),
            _Line("validation", held_out, "held-out files", bool(s.validation)),
        ),
    )


def _shown(table: _Table) -> Iterable[str]:
    yield ""
    yield f"# {table.says}"
    yield f"[{table.name}]" if table.given else f"# [{table.name}]"
    lines = [
        (f"{line.key} = {json.dumps(line.value, ensure_ascii=False)}", line) for line in table.lines
    ]
    for text, line in lines:
        shown = text if line.given and table.given else f"# {text}"
        yield f"{shown:<36}  # {line.says}".rstrip() if line.says else shown
