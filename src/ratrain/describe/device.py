"""What a device is: how fast it computes, what it holds, what moving bytes takes from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from ratrain.describe.amounts import (
    NOT_STATED,
    Count,
    FileName,
    Fraction,
    Name,
    RateBytesPerS,
    RateFlops,
    SizeBytes,
    TimeS,
)
from ratrain.describe.layer_profile import BlockCase, LayerProfile
from ratrain.describe.on_chip import ChipNetwork
from ratrain.describe.runs_on import runs_on_named
from ratrain.describe.strict import FrozenMap, Rule, nearest
from ratrain.describe.units import format_flops_rate
from ratrain.errors import SpecError

Operator = Literal["gemm", "attention", "attention backward"]
BytesPerParam = Annotated[float, Rule(low=1, high=1000)]


@dataclass(frozen=True)
class Tier:
    """One level of memory of a device; the first tier is the one the budget is about."""

    name: Name
    capacity_bytes: SizeBytes  # of the first tier: the budget of a job that names none
    bandwidth_bytes_per_s: RateBytesPerS  # of a copy, bytes read and written
    source: str = NOT_STATED  # where the figures come from
    # of the tier "disk": the folder for files of it; left out: the run's own
    path: FileName | None = None
    # "host": all devices of a host have it together, and each counts on an even part
    shared_by: Literal["device", "host"] = "device"

    def part_of(self, devices: int) -> Tier:
        """What a device has of it, on a host of so many."""
        if self.shared_by == "device" or devices == 1:
            return self
        capacity = self.capacity_bytes // devices
        rate = self.bandwidth_bytes_per_s / devices
        return replace(self, capacity_bytes=capacity, bandwidth_bytes_per_s=rate)


@dataclass(frozen=True)
class Rate:
    """FLOP/s of one dtype: the nominal peak and what operators were seen to reach."""

    dtype: Name  # fp32, bf16, fp16, ...
    peak_flops: RateFlops  # nominal
    gemm_flops: RateFlops  # what products reached
    source: str = NOT_STATED  # where the figures come from
    attention_flops: RateFlops | None = None  # left out: as GEMM
    # of the 4 products that its backward counts as; left out: as attention
    attention_backward_flops: RateFlops | None = None


@dataclass(frozen=True)
class KernelModel:
    """How a GPU's kernel library and its host behave: products by shape, passes counted. See
    cost.gpu_layer.
    """

    processors: Count  # that each run one tile of a product
    # the depth k at which a product reaches half of its rate
    half_depth: Annotated[float, Rule(low=0, high=1e9)]
    host_s: TimeS  # what the host needs to start one kernel
    attention: Literal["stored", "flash"]  # whether its attention keeps scores
    source: str = NOT_STATED  # where the figures come from
    # how often forward reads or writes the MLP's width for its activation (2: fused)
    activation_passes: Annotated[float, Rule(low=2, high=1000)] = 2.0
    optimizer_bytes_per_param: BytesPerParam = 28.0  # traffic of one update
    reduce_bytes_per_param: BytesPerParam | None = None  # left out: as weights
    loss_bytes_per_logit: Annotated[float, Rule(low=6, high=1000)] = 52.0  # both directions
    blocking_sends: bool = False  # compute waits for each message between stages
    whole_sends: bool = False  # each rank of a tensor group sends all of it, not a part to gather
    blocking_sums: bool = False  # compute waits for the sums of its tensor group
    # how sharply the slower of host and device decides in a tensor group; left out: the slower
    # alone
    lockstep: Annotated[float, Rule(low=1, high=1000)] | None = None


@dataclass(frozen=True)
class LabSpec:
    """How a lab (many devices made of one machine) holds a device of this kind to its file.

    A process in it gets `cpus` cores' worth of time, and memory for the first tier plus
    `overhead_bytes`: what an interpreter with torch takes before it holds any state.
    """

    cpus: Annotated[float, Rule(low=0.01, high=100_000)] = 1.0  # cores' worth of time
    overhead_bytes: SizeBytes = (
        600_000_000  # 600MB: beyond the first tier, for interpreter and torch's code
    )


@dataclass(frozen=True)
class Driving:
    """What a device's own processors do to move bytes, and what its compute loses by that.

    `per_message_s` and `per_byte_s` are processor time, of each message sent or received and of
    each of its bytes (o and O of LogGOPS: Hoefler et al. 2010, "LogGOPSim"). `stall`: seconds that
    compute stands still for each second of processor time beside it. Of a process with a share of
    a processor that is about 1 / share; with a processor to spare it is 0.
    """

    per_message_s: TimeS = 0.0  # processor time of each message sent or received
    per_byte_s: TimeS = 0.0  # the same of each of its bytes
    # seconds that compute stands still for each of those: about 1 / share of a processor, 0 with
    # one to spare
    stall: Annotated[float, Rule(low=0, high=1000)] = 1.0
    source: str = NOT_STATED  # where the figures come from

    @property
    def lost_beside(self) -> float:
        """Seconds of compute that a second of the device's own work on another lane costs: of that
        work, not of processors, so no more than itself."""
        return min(1.0, self.stall)


BY_OTHERS = Driving(stall=0.0)
"""Other processors than those that compute move a device's bytes."""


@dataclass(frozen=True)
class DeviceKind:
    """One kind of device: how fast it computes, what it holds, what starting an operator costs.

    A block that `layer_profile` covers takes the measured time, any other follows from `rates`.
    Without rates, what is not measured has no time, and asking for it is an error.
    """

    name: Name
    tiers: tuple[Tier, ...]  # of memory, the accelerator's own first
    launch_s: TimeS  # what starting an operator costs
    # the part of the first tier's bandwidth that element-wise work reaches
    memory_efficiency: Fraction
    launch_source: str = NOT_STATED  # where that comes from
    memory_efficiency_source: str = NOT_STATED  # where that comes from
    rates: tuple[Rate, ...] = ()  # FLOP/s by dtype
    # measured times of blocks, in place of what follows from rates
    layer_profile: tuple[LayerProfile, ...] = ()
    devices_per_chip: Count = 1  # devices that share the link `chip`
    # the network inside the chip, or the name of a file with it: left out, sums over devices of a
    # chip take what a ring over the link `chip` takes
    chip: ChipNetwork | None = None
    kernels: KernelModel | None = None  # left out: one rate for products of every shape
    lab: LabSpec | None = None  # left out: a lab cannot stand in for it
    # left out: other processors than those that compute move its bytes
    driving: Driving = BY_OTHERS
    # what ranks compute on: "cpu", "cuda", "deferred", "mt3000", or a device of your own
    runs_on: Name = "cpu"

    def __post_init__(self) -> None:
        runs_on_named(self.runs_on)
        if not self.tiers:
            raise SpecError("no tiers", place="tiers", fix="add [[device.tiers]]")
        if not self.rates and not self.layer_profile:
            raise SpecError(
                "no rates", place="rates", fix="add [[device.rates]] or [[device.layer_profile]]"
            )
        if self.chip and self.devices_per_chip > self.chip.columns * self.chip.rows:
            raise SpecError(
                f"{self.devices_per_chip} devices are on a chip of {self.chip.columns} x "
                f"{self.chip.rows}",
                place="devices_per_chip",
                fix="give the chip as many columns and rows as it has devices",
            )
        numbers: dict[BlockCase, int] = {}
        for number, entry in enumerate(self.layer_profile):
            before = numbers.setdefault(entry.case, number)
            if before != number:
                raise SpecError(
                    f"entries {before + 1} and {number + 1} are layer profiles of the same "
                    f"{entry.case}",
                    place=f"layer_profile.{number}",
                    fix="merge their times into one entry",
                )

    @property
    def memory(self) -> Tier:
        """The accelerator memory, which the budget is about."""
        return self.tiers[0]

    @property
    def is_processor(self) -> bool:
        """Whether it computes on processors of its host, so that a process anywhere can be one: a
        lab may stand in for it, or its memory is the host's."""
        return self.lab is not None or self.memory.name == "RAM"

    @property
    def peak_flops(self) -> FrozenMap[float]:
        """Nominal peak FLOP/s by dtype."""
        return FrozenMap({rate.dtype: rate.peak_flops for rate in self.rates})

    def rate(self, dtype: str) -> Rate:
        """The rates of one dtype."""
        for rate in self.rates:
            if rate.dtype == dtype:
                return rate
        raise SpecError(
            f'device "{self.name}" has no rate for dtype "{dtype}"',
            place="dtype",
            fix=nearest(dtype, [rate.dtype for rate in self.rates] or sorted(self.dtypes)),
        )

    @property
    def dtypes(self) -> frozenset[str]:
        """The dtypes that it can be priced in: by a rate, or by measured layers."""
        return frozenset(rate.dtype for rate in self.rates) | frozenset(
            entry.dtype for entry in self.layer_profile
        )

    def flops_rate(self, dtype: str, operator: Operator = "gemm") -> float:
        """FLOP/s that the operator reaches; element-wise work is bound by memory instead."""
        rate = self.rate(dtype)
        forward = rate.attention_flops or rate.gemm_flops
        backward = rate.attention_backward_flops or forward
        of_operator = {"attention": forward, "attention backward": backward}
        return of_operator.get(operator, rate.gemm_flops)

    @property
    def elementwise_bytes_per_s(self) -> float:
        """Bytes per second that a fused element-wise pass moves through the first tier."""
        return self.memory.bandwidth_bytes_per_s * self.memory_efficiency

    def __str__(self) -> str:
        if not self.rates:
            return f"{self.name} (measured layers)"
        best = max(self.rates, key=lambda rate: rate.peak_flops)
        return f"{self.name} ({best.dtype} {format_flops_rate(best.peak_flops)})"
