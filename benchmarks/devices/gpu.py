"""One GPU: RATrain beside plain torch, torch.compile and FSDP2, and four ranks that share it.

    python benchmarks/devices/gpu.py OUT.json [--quick]

A decoder of 0.78 billion parameters in bf16 with fp32 master weights, sequences of 2,048 tokens, on
one rank; every contestant in a process of its own, on the same shapes, after warm-up. Peers keep
fp32 weights and compute under autocast (FSDP2: bf16 copies of them); they may sum in any order,
RATrain repeats its bits. Model FLOPs are 6 x parameters x tokens and attention's 6 x layers x
hidden x sequence x tokens, over the device's dense bf16 peak as its data sheet has it (989 TFLOP/s:
H100 and H200).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
PEAK_FLOPS = 989e12
STEPS, KEPT = 12, 7
PEERS = ("compile", "fsdp2 compile", "eager", "fsdp2")
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
SEQUENCE, MICRO_BATCH, SEQUENCES = 2048, 4, 16

JOB = """
[model]
name = "{model}"
sequence_length = {sequence}

[cluster]
name = "{cluster}"
devices = {devices}

[batch]
sequences = {sequences}
micro_batch = {micro_batch}

[layout]
pipeline = {pipeline}
data = {data}

[schedule]
name = "{schedule}"
dtype = "{dtype}"
gradient_dtype = "fp32"
memory_budget = "{budget}"
{more}

[train]
steps = {steps}
learning_rate = 3e-4
warmup_steps = 4
clip_norm = 1.0
share_gpu = {share}
graphs = {graphs}

[data]
files = ["{text}"]

[checkpoint]
every = 0
"""


def environment() -> dict[str, str]:
    source = str(ROOT / "src")
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{source}:{known}" if known else source}


def ratrain(*words: str) -> str:
    """A verb's standard output."""
    start = "from ratrain.cli.start import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", start, *words],
        env=environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"ratrain {' '.join(words)}: {done.returncode}\n{done.stderr[-4000:]}")
    return done.stdout


def written_job(folder: Path, name: str, **changes: Any) -> Path:
    """A job file; `changes` of what it says."""
    config = folder / "model" / "config.json"
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps({**MODEL, **changes.pop("model_changes", {})}))
    text = folder / "text.jsonl"
    if not text.exists():
        ratrain("data", "--sample-text", str(text))
    said = {
        "model": "model/config.json",
        "sequence": SEQUENCE,
        "cluster": str(ROOT / "examples/clusters/one-gpu.toml"),
        "devices": 1,
        "sequences": SEQUENCES,
        "micro_batch": MICRO_BATCH,
        "pipeline": 1,
        "data": 1,
        "schedule": "ratrain",
        "dtype": "bf16",
        "budget": "70GB",
        "steps": STEPS,
        "share": "false",
        "graphs": "true",
        "text": text.name,
        "more": "",
    }
    path = folder / f"{name}.toml"
    path.write_text(JOB.format(**{**said, **changes}))
    return path


def trained(job: Path, *words: str) -> dict[str, Any]:
    """A run's report and its steps."""
    run = job.with_suffix("")
    body = json.loads(ratrain("train", str(job), "--run", str(run), "--json", *words))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    memory = [
        json.loads(path.read_text())["memory"]
        for path in sorted((run / "ranks").glob("records-*.json"))
    ]
    return {"report": body, "rows": rows, "memory": memory}


def step_s(rows: list[dict[str, Any]]) -> float:
    """The median of the last steps."""
    return median(row["step_time_s"] for row in rows if "step_time_s" in row)


def parameters() -> int:
    h, f, v = MODEL["hidden_size"], MODEL["intermediate_size"], MODEL["vocab_size"]
    return MODEL["num_hidden_layers"] * (4 * h * h + 3 * h * f + 2 * h) + 2 * v * h + h


def utilisation(seconds: float) -> float:
    """Model FLOPs over the data sheet's peak."""
    tokens = SEQUENCES * SEQUENCE
    attention = 6 * MODEL["num_hidden_layers"] * MODEL["hidden_size"] * SEQUENCE
    return tokens * (6 * parameters() + attention) / seconds / PEAK_FLOPS


def peer(kind: str) -> None:
    """One contestant's step times and memory, as JSON, in a process of its own."""
    import torch
    from torch.nn import functional
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    build: Any = LlamaForCausalLM
    model = build(LlamaConfig(**MODEL)).cuda()
    compiled, sharded = "compile" in kind, "fsdp2" in kind
    if sharded:
        import torch.distributed as dist
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
        dist.init_process_group("nccl", rank=0, world_size=1)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    if compiled:
        for layer in model.model.layers:
            layer.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True, weight_decay=0.1)
    tokens = torch.randint(MODEL["vocab_size"], (SEQUENCES, SEQUENCE + 1), device="cuda")
    took_s: list[float] = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for part in tokens.split(MICRO_BATCH):
            with torch.autocast("cuda", torch.bfloat16, enabled=not sharded):
                logits = model(part[:, :-1], use_cache=False).logits
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten())
            (loss * MICRO_BATCH / SEQUENCES).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        took_s.append(time.perf_counter() - began_s)
    print(json.dumps({"s": median(took_s[-KEPT:]), "peak": torch.cuda.max_memory_allocated()}))


def contestant(kind: str) -> dict[str, Any]:
    """A peer's figures, or what went wrong."""
    done = subprocess.run(
        [sys.executable, __file__, "--peer", kind], capture_output=True, text=True
    )
    if done.returncode:
        return {"error": done.stderr[-1500:]}
    figures = json.loads(done.stdout.splitlines()[-1])
    return {**figures, "utilisation": utilisation(figures["s"])}


def show(path: Path) -> None:
    """A table of figures that were kept."""
    figures = json.loads(path.read_text())
    print(f"{figures['gpu']}, torch {figures['torch']}, {figures['parameters']:,} parameters")
    for kind in ("alone", *PEERS):
        row = figures.get(kind, {"error": "not run"})
        if "error" in row:
            print(f"  {kind:14} {row['error'][-200:]}")
            continue
        peak = row.get("peak") or row["memory"][0]["allocated_peak_bytes"]
        used = f"{row['utilisation']:.1%} of peak"
        print(f"  {kind:14} {row['s'] * 1e3:7.1f} ms  {used}  {peak / 1e9:.1f} GB allocated")
    for name in ("alone", "shared"):
        if name in figures:
            step = figures[name]["report"]["step_time_s"]
            proved = max(memory["size_bytes"] for memory in figures[name]["memory"])
            predicted, measured = (f"{step[key] * 1e3:.1f} ms" for key in ("predicted", "measured"))
            said = f"predicted {predicted}, measured {measured}"
            print(f"  {name}: {said}; proved {proved / 1e9:.2f} GB a rank")
    if "shared" in figures:
        shared = figures["shared"]
        again, apart = shared["four_twice_identical"], shared["largest_difference"]
        print(f"  shared: identical again {again}; a loss is at most {apart:.2g} from one rank's")


def alone(folder: Path, **changes: Any) -> dict[str, Any]:
    """One rank: measured, predicted, memory proved and allocated."""
    job = written_job(folder, "alone", **changes)
    run = trained(job)
    rows = run["rows"][-KEPT:]
    seconds = step_s(rows)
    return {
        "s": seconds,
        "utilisation": utilisation(seconds),
        "memory": run["memory"],
        "losses": [row.get("loss") for row in run["rows"]],
        "report": run["report"],
    }


def shared(folder: Path, **changes: Any) -> dict[str, Any]:
    """Four ranks on one GPU, pipeline 2 x data 2, beside one rank with the same kernels."""
    small = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1376}
    small |= {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8192}
    same: dict[str, Any] = {"model_changes": small, "sequence": 512, "budget": "6GB", **changes}
    one = trained(written_job(folder, "one", **same))
    grid = {"devices": 4, "pipeline": 2, "data": 2, "share": "true"}
    four = trained(written_job(folder, "four", **{**same, **grid}))
    again = trained(written_job(folder, "again", **{**same, **grid}))
    losses = [[row["loss"] for row in run["rows"] if "loss" in row] for run in (one, four, again)]
    return {
        "losses_one": losses[0],
        "losses_four": losses[1],
        "four_twice_identical": losses[1] == losses[2],
        "largest_difference": max(abs(a - b) for a, b in zip(losses[0], losses[1], strict=True)),
        "s_one": step_s(one["rows"][-KEPT:]),
        "s_four": step_s(four["rows"][-KEPT:]),
        "memory": four["memory"],
        "report": four["report"],
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("out", nargs="?", type=Path)
    asked.add_argument("--peer")
    asked.add_argument("--show", type=Path, metavar="JSON")
    asked.add_argument("--quick", action="store_true", help="no peers, fewer steps")
    given = asked.parse_args()
    if given.peer:
        peer(given.peer)
        return
    if given.show:
        show(given.show)
        return
    import torch

    figures: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "parameters": parameters(),
    }

    def keep(name: str, value: Any) -> None:
        figures[name] = value
        if given.out:
            given.out.write_text(json.dumps(figures, indent=1))
        print(name, json.dumps(value)[:1500], flush=True)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        keep("alone", alone(folder, steps=6 if given.quick else STEPS))
        for kind in [] if given.quick else PEERS:
            keep(kind, contestant(kind))
        keep("shared", shared(folder, steps=6))


if __name__ == "__main__":
    main()
