"""Every op's price in small cases, against the formulas of docs/notes/costs-blocks.md written
out: a factor, a sign or a term that is lost in a price shows here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np
import pytest
from random_jobs import job

from ratrain.describe.cluster import ClusterSpec, HostKind, Link
from ratrain.describe.device import DeviceKind, Driving, Rate, Tier
from ratrain.describe.job import Batch, CheckpointSpec, ClusterChoice, LayoutSpec
from ratrain.describe.model import ModelSpec
from ratrain.describe.strict import FrozenMap
from ratrain.plan.case.case import Case, case_of
from ratrain.program.kind import Kind
from ratrain.simulate.costs import Work

H, FFN, V, S, MICRO, LAYERS = 96, 200, 1000, 64, 3, 5
T = S * MICRO
PEAK, GEMM, ATTENTION, MEMORY, PART, LAUNCH = 3e12, 1.1e12, 0.7e12, 3.3e11, 0.6, 7e-6
OWN = Driving(per_message_s=3e-5, per_byte_s=2e-10, stall=0.4)
INSIDE = Link(3e-6, 7e10, overhead_s=2e-6, collective_s=9e-6)
ACROSS = Link(5e-5, 1.3e9, overhead_s=4e-6, collective_s=2e-5)
DEVICE = DeviceKind(
    "d",
    (
        Tier("memory", 10**12, MEMORY),
        Tier("host", 10**12, 2.2e10),
        Tier("disk", 10**12, 1.7e9),
    ),
    LAUNCH,
    PART,
    rates=(Rate("fp16", PEAK, GEMM, attention_flops=ATTENTION), Rate("fp32", PEAK, GEMM)),
    driving=OWN,
)
MODEL = ModelSpec(
    name="m",
    family="llama",
    hidden=H,
    layers=LAYERS,
    heads=4,
    kv_heads=2,
    head_dim=H // 4,
    ffn=FFN,
    vocab=V,
    max_positions=4096,
    source="a test",
)
MATRICES = {  # elements of the matrices of a block, all that products read
    "embedding": 0,
    "layer": H * (H + 2 * H // 2) + H * H + 3 * H * FFN,
    "head": H * V,
}
PARAMS = {"embedding": H * V, "layer": MATRICES["layer"] + 2 * H, "head": H * V + H}
LAUNCHES = {"embedding": (1, 0, 1), "layer": (10, 10, 4), "head": (3, 3, 1)}


@dataclass(frozen=True)
class Asked:
    pipeline: int = 1
    data: int = 1
    tensor: int = 1
    sharding: int = 0
    backend: str = "described"
    dtype: str = "fp16"
    divided: bool = False
    feedback: bool = False

    @property
    def element(self) -> int:
        return {"fp16": 2, "fp32": 4}[self.dtype]


def made(asked: Asked, schedule: str = "1f1b") -> Case:
    """The case: a tensor group stands on one host, everything else on another."""
    layout = LayoutSpec(asked.pipeline, asked.data, asked.tensor, sequence_parallel=asked.divided)
    hosts = (HostKind("h", "d", asked.tensor, asked.pipeline * asked.data),)
    cluster = ClusterSpec("c", (DEVICE,), hosts, FrozenMap({"host": INSIDE, "room": ACROSS}))
    base = job("tiny-llama", "cpu-lab", 1, MICRO * 4 * asked.data, S, schedule=schedule)
    spec = replace(
        base,
        model=replace(base.model, spec=MODEL),
        cluster=ClusterChoice(cluster, layout.devices),
        batch=Batch(MICRO * 4 * asked.data, MICRO),
        layout=layout,
        schedule=replace(
            base.schedule,
            backend=asked.backend,
            dtype=asked.dtype,
            sharding=asked.sharding,
            error_feedback=asked.feedback,
            gradient_accumulation="local",
        ),
    )
    return case_of(spec)


def units(case: Case) -> list[str]:
    """The kind of each unit."""
    names = [unit.name for member in case.program.setup.members for unit in member.units]
    return [{"e": "embedding", "h": "head"}.get(name, "layer") for name in names]


def work(case: Case, kind: Kind) -> Work:
    return case.costs.work[kind]


def alone_s(case: Case, kind: Kind) -> np.ndarray:
    """Seconds of each unit's op on links that nothing else uses."""
    of_kind = work(case, kind)
    rate = np.where(of_kind.link >= 0, case.costs.link_rate_bytes_per_s[of_kind.link], 1.0)
    return of_kind.fixed_s + of_kind.volume_bytes / rate


def near(found: Sequence[float] | np.ndarray, expected: Sequence[float]) -> None:
    assert list(found) == pytest.approx(expected, rel=1e-9, abs=1e-15)


# ---- compute ---------------------------------------------------------------------------------


def seconds(
    kind: str, products: int, attention: float, passes: float, launches: int, a: Asked
) -> float:
    rate, attention_rate = (GEMM, ATTENTION) if a.dtype == "fp16" else (GEMM, GEMM)
    flops_s = products * 2 * T * MATRICES[kind] / rate + attention / attention_rate
    bytes_s = passes * a.element / 2 / (MEMORY * PART)
    return (flops_s + bytes_s) / a.tensor + launches * LAUNCH


def forward_s(kind: str, a: Asked) -> float:
    passes = {
        "embedding": 2 * T * 2 * H,
        "layer": 2 * T * (2 * 3 * H + 2 * 2 * H + 3 * FFN),
        "head": 2 * T * 2 * H + 6 * T * V,
    }
    attention = 2 * T * S * H if kind == "layer" else 0
    return seconds(kind, 1, attention, passes[kind], LAUNCHES[kind][0], a)


def input_s(kind: str, a: Asked) -> float:
    passes = {
        "embedding": 2 * T * 3 * H,
        "layer": 2 * T * (2 * 3 * H + 2 * 3 * H + 5 * FFN),
        "head": 2 * T * 3 * H + 6 * T * V,
    }
    attention = 2 * 2 * T * S * H if kind == "layer" else 0
    return seconds(kind, 1, attention, passes[kind], LAUNCHES[kind][1], a)


def weight_s(kind: str, a: Asked) -> float:
    return seconds(kind, 1, 0, 0, LAUNCHES[kind][2], a)


@pytest.mark.parametrize(
    "asked", [Asked(), Asked(dtype="fp32"), Asked(tensor=2), Asked(2, 2, 2, divided=True)]
)
def test_compute(asked: Asked) -> None:
    case = made(asked)
    kinds = units(case)
    near(alone_s(case, Kind.F), [forward_s(kind, asked) for kind in kinds])
    near(alone_s(case, Kind.R), [forward_s(kind, asked) for kind in kinds])
    near(alone_s(case, Kind.B), [input_s(k, asked) + weight_s(k, asked) for k in kinds])
    near(alone_s(case, Kind.I), [input_s(kind, asked) for kind in kinds])
    part = asked.element * T * H / 2 / INSIDE.bandwidth_bytes_per_s
    gather_s = asked.divided * (INSIDE.latency_s + INSIDE.collective_s + part)
    again = {"embedding": 0, "layer": 2, "head": 1}  # inputs of products, gathered for both
    later = [
        weight_s(k, asked)
        + 0.03 * (input_s(k, asked) + weight_s(k, asked))
        + LAUNCH
        + again[k] * gather_s
        for k in kinds
    ]
    near(alone_s(case, Kind.W), later)


# ---- messages and sums -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "part", "gathered"),
    [
        (Asked(2), 1, False),
        (Asked(2, dtype="fp32"), 1, False),
        (Asked(2, 1, 2), 2, True),
        (Asked(2, 1, 2, divided=True), 2, False),
        (Asked(2, 1, 2, backend="described+whole_sends"), 1, False),
    ],
)
def test_messages(asked: Asked, part: int, gathered: bool) -> None:
    case = made(asked)
    size = asked.element * T * H
    gather_s = INSIDE.latency_s + INSIDE.collective_s + size / 2 / INSIDE.bandwidth_bytes_per_s
    fixed_s = ACROSS.latency_s + gathered * gather_s
    lost_s = OWN.stall * (OWN.per_message_s + OWN.per_byte_s * size / part)
    first = case.program.setup.replicas[0].stages[0].only.units
    last = len(first) - 1
    for kind, unit in ((Kind.SEND_F, last), (Kind.SEND_B, last + 1)):
        sent = work(case, kind)
        near(
            [sent.fixed_s[unit], sent.volume_bytes[unit], sent.interrupt_s[unit]],
            [fixed_s, size / part, ACROSS.overhead_s + lost_s],
        )
    for kind, unit in ((Kind.RECV_F, last + 1), (Kind.RECV_B, last)):
        near([work(case, kind).interrupt_s[unit]], [lost_s])


def driven(size: float, messages: int, link: Link, *, adds: bool) -> float:
    """What a collective takes from compute: links' overhead, its messages and bytes at both ends,
    and the sum beside compute."""
    summed_s = OWN.stall * 3 * size / (MEMORY * PART) if adds else 0.0
    lost_s = 2 * OWN.stall * (OWN.per_message_s * messages + OWN.per_byte_s * size)
    return messages * link.overhead_s + lost_s + summed_s


@pytest.mark.parametrize("divided", [False, True])
def test_sums_of_a_tensor_group(divided: bool) -> None:
    asked = Asked(1, 1, 4, divided=divided)
    case = made(asked)
    counts = {"embedding": 1, "layer": 2, "head": 1}
    found = work(case, Kind.AllReduce_F)
    for unit, kind in enumerate(units(case)):
        halves, count = 2 * counts[kind], counts[kind]
        sent = halves * asked.element * T * H * 3 / 4
        starts = halves if divided else count
        fixed_s = halves * 3 * INSIDE.latency_s + starts * INSIDE.collective_s
        near(
            [found.fixed_s[unit], found.volume_bytes[unit], found.interrupt_s[unit]],
            [fixed_s, sent, driven(sent, halves * 3, INSIDE, adds=True)],
        )


# ---- state work --------------------------------------------------------------------------------


def whole_params(kind: str, a: Asked) -> float:
    return PARAMS[kind] / a.tensor


@pytest.mark.parametrize(
    "asked",
    [
        Asked(1, 3),
        Asked(1, 3, sharding=1),
        Asked(2, 3, 2, sharding=3),
        Asked(1, 3, dtype="fp32"),
    ],
)
def test_reductions_gathers_and_updates(asked: Asked) -> None:
    case = made(asked)
    n, owners = asked.data, asked.data if asked.sharding else 1
    reduce, gather = work(case, Kind.GradSync), work(case, Kind.PrefetchW)
    update = work(case, Kind.UpdateShard)
    for unit, kind in enumerate(units(case)):
        params = whole_params(kind, asked)
        half = asked.element * params * (n - 1) / n
        start_s = (n - 1) * ACROSS.latency_s + ACROSS.collective_s
        halves = 1 if asked.sharding else 2
        near(
            [reduce.fixed_s[unit], reduce.volume_bytes[unit], reduce.interrupt_s[unit]],
            [
                halves * start_s,
                halves * half,
                driven(halves * half, halves * (n - 1), ACROSS, adds=True),
            ],
        )
        near(
            [gather.fixed_s[unit], gather.volume_bytes[unit], gather.interrupt_s[unit]],
            [start_s, half, driven(half, n - 1, ACROSS, adds=False)],
        )
        moved = 28 * params / owners
        near(
            [update.fixed_s[unit], update.volume_bytes[unit], update.interrupt_s[unit]],
            [LAUNCH, moved, OWN.stall * (LAUNCH + moved / MEMORY)],
        )


def test_the_norm_a_checkpoint_and_inputs_on_the_host() -> None:
    asked = Asked(2, 3, sharding=1)
    case = made(asked)
    hops = 2 * ceil(log2(6))
    norm_s = hops * (ACROSS.latency_s + 8 / ACROSS.bandwidth_bytes_per_s) + ACROSS.collective_s
    norm = work(case, Kind.ClipNorm)
    near([norm.fixed_s[0]], [norm_s])
    near([norm.interrupt_s[0]], [driven(hops * 8, hops, ACROSS, adds=False)])
    saving = replace(case.job, checkpoint=CheckpointSpec(every=1))
    saved = work(case_of(saving), Kind.Save)
    away = replace(saving.schedule, activation_tier="host", recovery="everywhere", backend="torch")
    case = case_of(replace(saving, schedule=away))
    copied = work(case, Kind.OffloadInput)
    rates = case.costs.link_rate_bytes_per_s
    for unit, kind in enumerate(units(case)):
        near([saved.volume_bytes[unit]], [12 * PARAMS[kind] / 3])
        assert rates[saved.link[unit]] == 1.7e9
        near([copied.volume_bytes[unit]], [2 * T * H * (kind != "embedding")])  # that has no input
        assert kind == "embedding" or rates[copied.link[unit]] == 2.2e10


def averaging(averages: str, wire: str, collective: str) -> Case:
    """Three replicas that average their weights."""
    base = made(Asked(1, 3, dtype="fp32")).job
    asked = replace(base.schedule, average_every=2, averages=averages, average_wire=wire)
    outer = 0.7 if averages == "early-start" else None
    spec = replace(
        base,
        schedule=replace(asked, collective=collective),
        train=replace(base.train, clip_norm=None, outer_learning_rate=outer),
        checkpoint=CheckpointSpec(every=2),
    )
    return case_of(spec)


@pytest.mark.parametrize(
    ("averages", "wire", "each"),  # bytes of a parameter: weights and states, or weights alone
    [("local-sgd", "fp32", 12), ("early-start", "fp32", 4), ("early-start", "bf16", 2)],
)
def test_averages(averages: str, wire: str, each: int) -> None:
    case = averaging(averages, wire, "ring")
    found, start_s = work(case, Kind.AverageW), 2 * ACROSS.latency_s + ACROSS.collective_s
    for unit, kind in enumerate(units(case)):
        sent = 2 * each * PARAMS[kind] * 2 / 3
        near(
            [found.fixed_s[unit], found.volume_bytes[unit], found.interrupt_s[unit]],
            [2 * start_s, sent, driven(sent, 4, ACROSS, adds=True)],
        )


@pytest.mark.parametrize(("wire", "each"), [("int8", 1 + 2 / 64), ("int4", 1 / 2 + 2 / 64)])
def test_averages_in_integers_pass_over_weights_and_residuals_on_both_sides(
    wire: str, each: float
) -> None:
    usual, case = (averaging("early-start", name, "direct") for name in ("bf16", wire))
    plain, found = work(usual, Kind.AverageW), work(case, Kind.AverageW)
    of_byte_s = OWN.stall * (2 * OWN.per_byte_s + 3 / (MEMORY * PART))
    for unit, kind in enumerate(units(case)):
        integers_s = 4 * (16 * (1 + 1 / 3) + 2 * 6) * PARAMS[kind] / (MEMORY * PART)
        fewer = plain.volume_bytes[unit] * (1 - each / 2)
        near([plain.volume_bytes[unit] - found.volume_bytes[unit]], [fewer])
        near([found.fixed_s[unit] - plain.fixed_s[unit]], [integers_s])
        taken_s = found.interrupt_s[unit] - plain.interrupt_s[unit]
        near([taken_s], [OWN.stall * integers_s - of_byte_s * fewer])


def test_error_feedback_reads_and_writes_a_residual_first() -> None:
    plain, fed = made(Asked(1, 3)), made(Asked(1, 3, feedback=True))
    grown = work(fed, Kind.GradSync).fixed_s - work(plain, Kind.GradSync).fixed_s
    near(grown, [2 * 4 * whole_params(kind, Asked()) / MEMORY for kind in units(plain)])
