"""The folder that is fuzzed: a real example of every file that a user may hand in.

Two tiny training runs are really made, so that every file of a run's folder is a real one too.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "_name_or_path": "minute",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 2,
    "vocab_size": 300,
    "n_positions": 128,
    "activation_function": "gelu_new",
}
BAICHUAN = {**CONFIG, "model_type": "baichuan", "num_key_value_heads": 4, "norm_head": False}
JOB = """\
# A job that trains in seconds.
[model]
name = "config.json"
sequence_length = 32

[cluster]
name = "cluster.toml"
devices = 2

[batch]
sequences = 8
micro_batch = 2

[layout]
pipeline = 2
data = 1
tensor = 1
virtual = 1
layers = [1, 1]

[schedule]
name = "ratrain"
without = ["forward-recovery"]
memory_budget = "60MB"
recovery_buffer = 2
gradient_accumulation = "local"
recovery = "exempt-last"
sharding = 2
dtype = "fp32"

[train]
steps = 6
learning_rate = 1e-2
rate_schedule = "linear"
warmup_steps = 2
final_rate = 0.1
weight_decay = 0.1
beta1 = 0.9
beta2 = 0.95
epsilon = 1e-8
clip_norm = 1.0
loss_scale = 65536.0
seed = 3
timeout = "300s"

[data]
files = ["text.jsonl"]
tokenizer = "bytes"
text_key = "text"
shuffle = true
validation = ["held-out.txt"]

[checkpoint]
every = 3
keep = 2
disks = "shared"
"""
MEASURED = """\
name = "layers"
source = "this test"

[[device]]
name = "measured"
launch = "5us"
launch_source = "this test"
memory_efficiency = 0.8
memory_efficiency_source = "this test"

[[device.tiers]]
name = "memory"
capacity = "40GB"
bandwidth = "1TB/s"
source = "this test"

[[device.layer_profile]]
shape = {hidden = 32, ffn = 64, heads = 4, kv_heads = 2}
sequence = 32
dtype = "fp32"
times = [{micro_batch = 1, forward = "4ms", backward = "9ms"}]
source = "this test"

[[device.layer_profile]]
block = "head"
shape = {hidden = 32, vocab = 256}
sequence = 32
dtype = "fp32"
times = [{micro_batch = 1, forward = "1ms", backward = "2ms"}]
update = "1ms"
source = "this test"

[[host]]
name = "a"
device = "measured"
devices = 4
count = 2

[links.host]
latency = "10us"
bandwidth = "4GB/s"
source = "this test"
by_size = [{size = "1MB", bandwidth = "1GB/s"}, {size = "4MB", bandwidth = "3GB/s"}]

[links.room]
latency = "40us"
bandwidth = "2GB/s"
source = "this test"
log_quadratic = [-0.01, 0.2, 0.5]
"""
FORM = """\
# Keys that put a program together by hand.
[model]
name = "config.json"
sequence_length = 32

[cluster]
name = "cluster.toml"
devices = 2

[batch]
sequences = 8
micro_batch = 1

[layout]
pipeline = 1
data = 2

[schedule]
name = "gpipe"
skeleton = "breadth-first"
passes = ["backward-recovery", "gather-once"]
backend = "torch"
average_every = 2
recover_heads = false
dtype = "fp32"
gradient_dtype = "fp32"
gradient_wire = "fp32"
boundary_wire = "bf16"
error_feedback = false

[train]
steps = 6
learning_rate = 1e-2
device = "cpu"
"""
LONG = """\
[model]
name = "config.json"
sequence_length = 32
[cluster]
name = "cluster.toml"
devices = 2
[batch]
sequences = 6000
micro_batch = 1
[layout]
pipeline = 2
data = 1
layers = [1, 1]
[schedule]
name = "ratrain"
dtype = "fp32"
"""
SEARCHED = """\
[model]
name = "small-llama"
sequence_length = 512
[cluster]
name = "mixed.toml"
devices = 4
[batch]
sequences = 8
[schedule]
name = "ratrain"
dtype = "fp32"
"""
DEVICE = """\
[[device]]
name = "{name}"
launch = "10us"
launch_source = "assumed"
memory_efficiency = {efficiency}
memory_efficiency_source = "assumed"
devices_per_chip = 1

[device.lab]
cpus = 1.0
overhead = "600MB"

[[device.tiers]]
name = "RAM"
capacity = "{capacity}"
bandwidth = "10GB/s"
source = "assumed"

[[device.rates]]
dtype = "fp32"
peak = "100GFLOP/s"
gemm = "{gemm}"
attention = "30GFLOP/s"
source = "assumed"

[[device.rates]]
dtype = "fp16"
peak = "100GFLOP/s"
gemm = "50GFLOP/s"
source = "assumed"
"""
HOST = """
[[host]]
name = "{name}"
device = "{device}"
devices = 1
count = {count}
room = "{room}"
site = "here"
"""
LINKS = """
[links.room]
latency = "200us"
bandwidth = "1Gbit/s"
shared_by = "host"
source = "a data sheet"
overhead = "5us"
overhead_source = "assumed"
collective = "10us"

[links.world]
latency = "20ms"
bandwidth = "100Mb/s"
source = "assumed"
"""
KERNELS = """
[device.kernels]
processors = 108
half_depth = 64.0
host = "4us"
attention = "stored"
source = "fit"
activation_passes = 2.0
lockstep = 3.0
"""
RUNS = """\
iter_s,gpus,gbs,mbs,tp,pp,dp,vstage_layers,model,layers,hidden,heads,vocab,sequence,recompute,sequence_parallel,cluster,held_out
1.42,8,4,4,8,1,1,,gpt-22b,,,,,,full,no,,yes
3.5,4,8,1,2,2,,,,4,1024,8,51200,2048,selective,yes,a100-80g-dgx,no
"""
ADDRESS = {
    "name": "a",
    "incarnation": 12345678901234,
    "host_id": "here",
    "endpoints": [["sock", "lo", "127.0.0.1", 9]],
    "version": 1,
}


def ratrain(folder: Path, *arguments: str) -> None:
    """Runs `ratrain` in a folder; it must succeed."""
    code = "from ratrain.cli.main import main; main()"
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"ratrain {' '.join(arguments)}: {ran.stderr or ran.stdout}")


def make_world(folder: Path) -> None:
    """Fills a folder, which is empty or absent."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_descriptions(folder)
    _write_texts(folder)
    _write_tokenizer(folder)
    ratrain(folder, "program", "job.toml", "--form", "text", "-o", "small.program")
    ratrain(folder, "program", "job.toml", "--form", "csv", "-o", "small.csv")
    ratrain(folder, "program", "job.toml", "--form", "csv-comms", "-o", "sent.csv")
    ratrain(folder, "program", "long.toml", "--form", "text", "-o", "long.program")
    if "\nrepeats " not in (folder / "long.program").read_text():
        raise RuntimeError("long.program does not repeat itself: give long.toml more sequences")
    ratrain(folder, "plan", "searched.toml", "-o", "plan.json")
    ratrain(folder, "plan", "job.toml", "-o", "job-plan.json")
    for run in ("run", "run2"):
        ratrain(folder, "train", "job.toml", "--run", run)
    ratrain(folder, "export", "run", "hf")
    shutil.copyfile(folder / "tokenizer.json", folder / "hf" / "tokenizer.json")
    _write_sharded(folder)
    for left in ("logs", "tensorboard"):
        shutil.rmtree(folder / "run" / left, ignore_errors=True)
        shutil.rmtree(folder / "run2" / left, ignore_errors=True)


def _write_descriptions(folder: Path) -> None:
    slow = DEVICE.format(name="slow", efficiency=0.7, capacity="2GB", gemm="20GFLOP/s")
    fast = DEVICE.format(name="fast", efficiency=0.8, capacity="2GB", gemm="50GFLOP/s")
    head = 'name = "{}"\nsource = "this test"\n\n'
    hosts = HOST.format(name="a", device="fast", count=2, room="r1")
    hosts += HOST.format(name="b", device="slow", count='"any"', room="r2")
    profiled = '\n[[device]]\nname = "slow"\nprofile = "profile.toml"\n'
    host = HOST.format(name="me", device="measured", count=1, room="r")
    measured = slow.replace('name = "slow"', 'name = "measured"')
    files = {
        "job.toml": JOB,
        "searched.toml": SEARCHED,
        "form.toml": FORM,
        "long.toml": LONG,
        "cluster.toml": head.format("fuzzed") + fast + KERNELS + slow + hosts + LINKS,
        "mixed.toml": head.format("mixed") + fast + profiled + hosts + LINKS,
        "measured.toml": MEASURED,
        "profile.toml": head.format("measured") + measured + host + LINKS,
        "config.json": json.dumps(CONFIG, indent=1),
        "gpt2.json": json.dumps(GPT2, indent=1),
        "baichuan.json": json.dumps(BAICHUAN, indent=1),
        "runs.csv": RUNS,
        "job.key": "0123456789abcdef0123456789abcdef\n",
        "a.json": json.dumps(ADDRESS),
        "b.json": json.dumps({**ADDRESS, "name": "b", "incarnation": 999}),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    for planner in ("grolar", "metis", "sailor"):
        shutil.copytree(EXAMPLES / "convert" / planner, folder / planner)
    shutil.copytree(EXAMPLES / "chips", folder, dirs_exist_ok=True)


def _write_texts(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    lines = [f"line {n}: {n} times {n} is {n * n}, über 数 🦀." for n in range(300)]
    rows = [{"text": line, "source": f"made/{n}"} for n, line in enumerate(lines)]
    (folder / "text.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=n % 2 == 0) + "\n" for n, row in enumerate(rows))
    )
    (folder / "text.txt").write_text("\n".join(lines))
    (folder / "held-out.txt").write_text("\n".join(line[::-1] for line in lines))
    (folder / "text.jsonl.gz").write_bytes(gzip.compress((folder / "text.jsonl").read_bytes()))
    table = pa.table({"text": lines, "number": list(range(len(lines)))})
    parquet.write_table(table, folder / "text.parquet")
    saved = folder / "saved"
    saved.mkdir()
    with (
        pa.OSFile(str(saved / "data-0.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
    for kind in ("text.txt", "text.jsonl.gz", "text.parquet", "saved"):
        name = f"job-{kind.replace('.', '-')}.toml"
        (folder / name).write_text(JOB.replace("text.jsonl", kind))
    changed = JOB.replace('tokenizer = "bytes"', 'tokenizer = "tokenizer.json"')
    (folder / "job-tokenizer.toml").write_text(changed)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<pad>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the step of a state", "naïve 数 🦀"] * 8, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|endoftext|>", "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _write_sharded(folder: Path) -> None:
    """The exported model again, cut into several files with an index."""
    code = """
import sys, torch
from pathlib import Path
from ratrain.models.huggingface import write_model
from ratrain.runtime.run.trained import trained_model
model = trained_model(Path("hf"))
write_model("sharded", model.spec, torch.bfloat16, model.source, max_shard_bytes=20_000)
"""
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=120)
