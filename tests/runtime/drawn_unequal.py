"""Jobs drawn at random whose stages and replicas differ: depths, cuts, shares of a step, sizes of
micro-batches, tensor degrees, members of a stage, and kinds of device with dtypes of their own.

Each is a plan file beside its job, on two to five processes. `drawn_jobs.run_job` runs it like any
other; besides, another schedule of the same assignment must have the same bits.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import lcm

from drawn_jobs import CUTS, DrawnJob, moved_to, of_kinds, wired
from runs_made import Setting, Unlike

MOST_RANKS = 5
SCHEDULES = ("ratrain", "1f1b", "gpipe", "zb-h1", "breadth-first", "pe-zero")
ODDER = ("full-save", "backward-checkpoint", "megatron", "zero3-heavy", "tuned", "interleaved")
RECOVERIES = ("none", "none", "backward", "forward")


def draw_unequal(seed: int) -> DrawnJob:
    """The unequal job of a seed. Most can be trained; some contradict themselves."""
    dice = random.Random(f"unequal {seed}")
    layers, sequences = dice.randint(2, 7), dice.randint(3, 12)
    name = dice.choice(SCHEDULES if dice.random() < 0.85 else ODDER)
    degrees = dice.choice(((1,), (1,), (1, 2), (1, 3)))
    cut = dice.choice(CUTS)
    setting = Setting(
        name=name,
        sequences=sequences,
        sequence_length=dice.randint(9, 17),
        sharding=3 if name == "pe-zero" else dice.choice((0, 1, 1, 2, 2, 3)),
        accumulation="sharded" if dice.random() < 0.08 else "local",
        dtype=dice.choice(("fp32", "fp32", "fp32", "bf16", "fp16")),
        clip_norm=dice.choice((None, None, 0.5)),
        collective=dice.choice((None, None, None, "auto", "ring", "hierarchical")),
        recovery_buffer=dice.choice((None, 1, 3)),
        learning_rate=1e-3,
        steps=4 if cut == "steps" else 12,
        every=dice.choice((1, 2)),
        keep=20,
        timeout_s=60.0,
        latency=dice.choice(("100us", "2ms")),
        model=_model(layers, lcm(*degrees), dice),
    )
    setting = wired(_of_kinds(_assigned(setting, degrees, dice), dice), seed)
    moved = None
    if dice.random() < 0.4:
        moved = _elsewhere(setting, degrees, dice)
    return DrawnJob(
        seed,
        setting,
        cut,
        cut_step=dice.randint(1, 3),
        calibrate=dice.random() < 0.5,
        moved=moved,
        sibling=_sibling(setting, dice),
    )


def _model(layers: int, degree: int, dice: random.Random) -> tuple[tuple[str, object], ...]:
    """A small model that tensor groups of this degree divide, and mostly nothing else does."""
    kv_heads = degree * dice.randint(1, 2)
    heads, head_dim = kv_heads * dice.randint(1, 2), 2 * dice.randint(1, 4)
    config: dict[str, object] = {
        "model_type": dice.choice(("llama", "llama", "qwen2")),
        "hidden_size": heads * head_dim,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": degree * dice.randint(3, 17),
        "vocab_size": degree * dice.randint(-(-260 // degree), 340 // degree),
        "tie_word_embeddings": dice.random() < 0.25,
    }
    return tuple(config.items())


# ---- who computes what --------------------------------------------------------------------------


def _assigned(setting: Setting, degrees: tuple[int, ...], dice: random.Random) -> Setting:
    """The setting with stages of members, or with replicas that differ, on two to five ranks."""
    while True:
        draw = _members if dice.random() < 0.3 else _replicas
        drawn = draw(setting, degrees, dice)
        if 2 <= drawn.world_size <= MOST_RANKS:
            return replace(drawn, idle=int(dice.random() < 0.2))


def _replicas(setting: Setting, degrees: tuple[int, ...], dice: random.Random) -> Setting:
    """One to three entries of replicas that divide the sequences of a step among them."""
    shares = _parts(setting.sequences, dice.randint(1, min(3, setting.sequences)), dice)
    unlike = tuple(_entry(share, _layers(setting), degrees, dice) for share in shares)
    return replace(setting, unlike=unlike, serving=(), serving_at=())


def _entry(share: int, layers: int, degrees: tuple[int, ...], dice: random.Random) -> Unlike:
    """Replicas alike that take so many sequences together."""
    count = 2 if share % 2 == 0 and dice.random() < 0.2 else 1
    share //= count
    size = dice.choice([n for n in (1, 2, 3) if share % n == 0])
    depth = dice.randint(1, min(3, layers))
    joins = [n for n in (1, 2, 3) if share // size % n == 0] if dice.random() < 0.3 else [1]
    return Unlike(
        layers=_parts(layers, depth, dice),
        micro_batches=share // size,
        micro_batch=size,
        recovery=dice.choice(RECOVERIES),
        count=count,
        tensor=tuple(dice.choice(degrees) for _ in range(depth)),
        joined=(*(dice.choice((1, joins[-1])) for _ in range(depth - 1)), 1),
    )


def _members(setting: Setting, degrees: tuple[int, ...], dice: random.Random) -> Setting:
    """One replica of one or two stages, each shared by up to three members; some serve nothing."""
    depth, size = dice.randint(1, 2), dice.choice((1, 1, 3))
    if setting.sequences % size:
        size = 1
    batches = setting.sequences // size
    serving = tuple(_serving(batches, dice.randint(1, 3), dice) for _ in range(depth))
    layers = _parts(_layers(setting), depth, dice)
    unlike = Unlike(layers, batches, micro_batch=size, recovery=dice.choice(RECOVERIES))
    at = tuple(tuple(dice.choice(degrees) for _ in shares) for shares in serving)
    return replace(setting, unlike=(unlike,), serving=serving, serving_at=at)


def _serving(batches: int, members: int, dice: random.Random) -> tuple[str, ...]:
    """Which micro-batches each member of a stage serves: any."""
    taken = [dice.randrange(members) for _ in range(batches)]
    shares = [[str(n) for n, who in enumerate(taken) if who == member] for member in range(members)]
    return tuple(", ".join(share) or "none" for share in shares)


def _layers(setting: Setting) -> int:
    return int(str(dict(setting.model)["num_hidden_layers"]))


def _parts(total: int, count: int, dice: random.Random) -> tuple[int, ...]:
    """Any numbers, none of them zero, that add up."""
    cuts = sorted(dice.sample(range(1, total), count - 1))
    return tuple(end - begin for begin, end in zip([0, *cuts], [*cuts, total], strict=True))


# ---- the rest -----------------------------------------------------------------------------------


def _of_kinds(setting: Setting, dice: random.Random) -> Setting:
    """Some devices of half of the jobs in 16 bits compute in a dtype of their own."""
    if setting.dtype == "fp32" or dice.random() < 0.5:
        return setting
    return of_kinds(setting, setting.world_size + setting.idle, dice)


def _elsewhere(setting: Setting, degrees: tuple[int, ...], dice: random.Random) -> Setting:
    """The same training on other unequal replicas, or on replicas alike."""
    if dice.random() < 0.5:
        return moved_to(replace(setting, unlike=(), serving=(), serving_at=(), idle=0), dice)
    return _assigned(replace(setting, old=(), older=(), dtypes=()), degrees, dice)


def _sibling(setting: Setting, dice: random.Random) -> Setting:
    """Another schedule of the same assignment."""
    name = dice.choice([name for name in SCHEDULES if name != setting.name])
    sharding = 3 if name == "pe-zero" else dice.choice((0, 1, 2))
    return replace(setting, name=name, sharding=sharding)
