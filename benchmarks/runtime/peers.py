"""What is compared with: each a way to run one step on torch's own parts, over gloo.

World ranks count data within pipeline, as ours do. All of them accumulate gradients locally over
a step's micro-batches and reduce once, except plain FSDP2.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from cases import BETAS, EPSILON, LEARNING_RATE, LOW_RANK, NARROW, WEIGHT_DECAY, Case, equal_layers
from deepspeed_peer import DeepSpeedPipeline
from plain_model import Stage, loss_of, stage_of, units_of_stage
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
)
from torch.nn.parallel import DistributedDataParallel

from ratrain.describe.model import ModelSpec

CPU = torch.device("cpu")
LOOPS = 2
"""Stages of each rank in torch's looped orders."""
RANK = 2
"""Columns of the matrices in which PowerSGD sends a gradient."""


LoopedOrder = (
    type[ScheduleInterleaved1F1B] | type[ScheduleLoopedBFS] | type[ScheduleInterleavedZeroBubble]
)


class Method(Protocol):
    """One rank's part of a way to train."""

    module: nn.Module

    def backward(self, tokens: Tensor, targets: Tensor) -> float | None:
        """All micro-batches of a step, gradients reduced; the replica's loss sum where known."""
        ...


class Accumulated:
    """Micro-batches one after the other; `sync` says in which of them gradients are reduced."""

    def __init__(self, case: Case, module: nn.Module, scale: float, *, keeps: bool = False) -> None:
        self.case, self.module, self.scale, self.keeps = case, module, scale, keeps
        self.loss_of = loss_of(case)

    def backward(self, tokens: Tensor, targets: Tensor) -> float:
        size, total = self.case.micro_batch, 0.0
        last = self.case.micro_batches - 1
        pairs = zip(tokens.split(size), targets.split(size), strict=True)
        for number, (inputs, wanted) in enumerate(pairs):
            with self._synced(number == last):
                loss = self.loss_of(self.module(inputs), wanted)
                (loss * self.scale).backward()
            total += loss.item()
        return total

    def _synced(self, last: bool) -> AbstractContextManager[None]:
        if isinstance(self.module, DistributedDataParallel) and not last:
            return self.module.no_sync()
        if isinstance(self.module, FSDPModule) and self.keeps:
            self.module.set_is_last_backward(last)
            self.module.set_requires_gradient_sync(last)
            self.module.set_reshard_after_backward(last)
        return nullcontext()


def stepped(
    schedule: Any, rank: int, pipeline: int, tokens: Tensor, targets: Tensor
) -> float | None:
    """One step of torch's pipelining; the scaled losses' sum, on the last rank."""
    losses: list[Tensor] | None = [] if rank == pipeline - 1 else None
    inputs = (tokens,) if rank == 0 else ()
    wanted = None if losses is None else targets
    schedule.step(*inputs, target=wanted, losses=losses, return_outputs=False)
    return None if losses is None else sum(loss.item() for loss in losses)


class Pipelined:
    """torch.distributed.pipelining's 1F1B; data parallelism is the stage module's affair."""

    def __init__(
        self, case: Case, module: nn.Module, scale: float, group: dist.ProcessGroup
    ) -> None:
        self.case, self.module = case, module
        self.rank = dist.get_rank(group)
        stage = PipelineStage(module, self.rank, case.pipeline, CPU, group=group)
        self.schedule = Schedule1F1B(
            stage,
            case.micro_batches,
            loss_fn=lambda output, wanted: loss_of(case)(output, wanted) * scale,
            scale_grads=False,
        )
        self.scale = scale

    def backward(self, tokens: Tensor, targets: Tensor) -> float | None:
        loss = stepped(self.schedule, self.rank, self.case.pipeline, tokens, targets)
        return None if loss is None else loss / self.scale


class Looped:
    """torch.distributed.pipelining's orders for several stages per rank, `LOOPS` here."""

    def __init__(self, case: Case, spec: ModelSpec, order: LoopedOrder) -> None:
        group = _mesh(case).get_group("pp")
        self.case, self.rank = case, dist.get_rank(group)
        layers = equal_layers(spec.layers, case.pipeline * LOOPS)
        numbers = [self.rank + loop * case.pipeline for loop in range(LOOPS)]
        chunks = [_stage(case, spec, number, layers) for number in numbers]
        self.module: nn.Module = nn.ModuleList(chunks)
        stages: list[Any] = [
            PipelineStage(chunk, number, len(layers), CPU, group=group)
            for chunk, number in zip(chunks, numbers, strict=True)
        ]
        self.schedule = order(
            stages,
            case.micro_batches,
            loss_fn=lambda output, wanted: loss_of(case)(output, wanted) / case.tokens,
            scale_grads=False,
        )

    def backward(self, tokens: Tensor, targets: Tensor) -> float | None:
        loss = stepped(self.schedule, self.rank, self.case.pipeline, tokens, targets)
        return None if loss is None else loss * self.case.tokens


class Hooked:
    """Any method, its gradients reduced one by one as the last micro-batch makes them.

    Not a thing that torch offers: what an expert adds to its pipeline by hand.
    """

    def __init__(self, inner: Method, micro_batches: int, group: dist.ProcessGroup) -> None:
        self.inner, self.module, self.group = inner, inner.module, group
        self.micro_batches = micro_batches
        self.seen: dict[Tensor, int] = {}
        self.works: list[dist.Work] = []
        for parameter in self.module.parameters():
            parameter.register_post_accumulate_grad_hook(self._made)

    def backward(self, tokens: Tensor, targets: Tensor) -> float | None:
        loss = self.inner.backward(tokens, targets)
        for work in self.works:
            work.wait()
        self.works.clear()
        self.seen.clear()
        return loss

    def _made(self, parameter: Tensor) -> None:
        self.seen[parameter] = self.seen.get(parameter, 0) + 1
        if self.seen[parameter] == self.micro_batches:
            assert parameter.grad is not None
            work = dist.all_reduce(parameter.grad, group=self.group, async_op=True)
            self.works.append(cast("dist.Work", work))


def single(case: Case, spec: ModelSpec) -> Method:
    """One process."""
    return Accumulated(case, _stage(case, spec, 0), 1 / case.tokens)


def ddp(case: Case, spec: ModelSpec) -> Method:
    """DistributedDataParallel, reduced in the last micro-batch's backward."""
    module = DistributedDataParallel(_stage(case, spec, 0), gradient_as_bucket_view=True)
    return Accumulated(case, module, case.data / case.tokens)


def narrow_ddp(case: Case, spec: ModelSpec) -> Method:
    """The same with torch's hook that rounds buckets to bf16, and adds them up in it."""
    return _narrow(ddp(case, spec))


def low_rank_ddp(case: Case, spec: ModelSpec) -> Method:
    """The same with torch's PowerSGD hook: gradients travel as products of two thin matrices, and
    what that loses is fed back."""
    method = ddp(case, spec)
    assert isinstance(method.module, DistributedDataParallel)
    state = PowerSGDState(
        method.module.process_group, matrix_approximation_rank=RANK, start_powerSGD_iter=2
    )
    method.module.register_comm_hook(state, lambda state, bucket: powerSGD_hook(state, bucket))
    return method


def fsdp2(case: Case, spec: ModelSpec) -> Method:
    """fully_shard of every unit as the manual shows it: gathered for forward and for backward,
    gradients reduced and sharded in every micro-batch. Least memory, most bytes."""
    return _fsdp2(case, spec, reshard=True)


def fsdp2_kept(case: Case, spec: ModelSpec) -> Method:
    """fully_shard, parameters and gradients kept whole until the step's backward is over."""
    return _fsdp2(case, spec, reshard=False)


def pipeline(case: Case, spec: ModelSpec) -> Method:
    """1F1B and nothing else."""
    mesh = _mesh(case)
    return Pipelined(case, _own_stage(case, spec, mesh), 1 / case.tokens, mesh.get_group("pp"))


def pipeline_interleaved(case: Case, spec: ModelSpec) -> Method:
    """Interleaved 1F1B."""
    return Looped(case, spec, ScheduleInterleaved1F1B)


def pipeline_breadth_first(case: Case, spec: ModelSpec) -> Method:
    """All micro-batches through one stage of a rank, then through the next."""
    return Looped(case, spec, ScheduleLoopedBFS)


def pipeline_zero_bubble(case: Case, spec: ModelSpec) -> Method:
    """Interleaved 1F1B in which weight gradients fill the waits."""
    return Looped(case, spec, ScheduleInterleavedZeroBubble)


def pipeline_ddp(case: Case, spec: ModelSpec) -> Method:
    """1F1B, each stage in DistributedDataParallel."""
    mesh = _mesh(case)
    module = DistributedDataParallel(
        _own_stage(case, spec, mesh),
        process_group=mesh.get_group("dp"),
        gradient_as_bucket_view=True,
    )
    return Pipelined(case, module, case.data / case.tokens, mesh.get_group("pp"))


def narrow_pipeline_ddp(case: Case, spec: ModelSpec) -> Method:
    """The same with that hook; what goes between stages stays in fp32."""
    return _narrow(pipeline_ddp(case, spec))


def _narrow(method: Method) -> Method:
    assert isinstance(method.module, DistributedDataParallel)
    # Under its own name DistributedDataParallel refuses torch's hook where there is no NCCL.
    method.module.register_comm_hook(
        method.module.process_group, lambda group, bucket: bf16_compress_hook(group, bucket)
    )
    return method


def pipeline_fsdp2(case: Case, spec: ModelSpec) -> Method:
    """1F1B, each stage sharded, its parameters gathered once a step."""
    mesh = _mesh(case)
    module = _own_stage(case, spec, mesh)
    _shard(module, mesh["dp"], reshard=False)
    return Pipelined(case, module, case.data / case.tokens, mesh.get_group("pp"))


def pipeline_hooks(case: Case, spec: ModelSpec) -> Method:
    """1F1B with hand-written hooks that reduce each parameter as soon as it is ready."""
    mesh = _mesh(case)
    inner = Pipelined(case, _own_stage(case, spec, mesh), 1 / case.tokens, mesh.get_group("pp"))
    return Hooked(inner, case.micro_batches, mesh.get_group("dp"))


def deepspeed(case: Case, spec: ModelSpec) -> Method:
    """DeepSpeed's pipeline with ZeRO-1, and its update inside the step."""
    return DeepSpeedPipeline(case, lambda number: _stage(case, spec, number), optimizer_of)


BUILDERS: dict[str, Callable[[Case, ModelSpec], Method]] = {
    "plain": single,
    "ddp": ddp,
    "fsdp2": fsdp2,
    "fsdp2-kept": fsdp2_kept,
    "pp": pipeline,
    "pp-interleaved": pipeline_interleaved,
    "pp-bfs": pipeline_breadth_first,
    "pp-zero-bubble": pipeline_zero_bubble,
    "pp+ddp": pipeline_ddp,
    "pp+fsdp2": pipeline_fsdp2,
    "pp+hooks": pipeline_hooks,
    "deepspeed": deepspeed,
    f"ddp{NARROW}": narrow_ddp,
    f"ddp{LOW_RANK}": low_rank_ddp,
    f"pp+ddp{NARROW}": narrow_pipeline_ddp,
}


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    """Fused AdamW; matrices decay, norms do not."""
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, fused=True)


def _fsdp2(case: Case, spec: ModelSpec, *, reshard: bool) -> Method:
    module = _stage(case, spec, 0)
    _shard(module, init_device_mesh("cpu", (case.data,)), reshard=reshard)
    return Accumulated(case, module, case.data / case.tokens, keeps=not reshard)


def _shard(module: Stage, mesh: DeviceMesh, *, reshard: bool) -> None:
    for unit in module.units:
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(module, mesh=mesh, reshard_after_forward=reshard)


def _mesh(case: Case) -> DeviceMesh:
    return init_device_mesh("cpu", (case.pipeline, case.data), mesh_dim_names=("pp", "dp"))


def _own_stage(case: Case, spec: ModelSpec, mesh: DeviceMesh) -> Stage:
    return _stage(case, spec, mesh.get_local_rank("pp"))


def _stage(
    case: Case, spec: ModelSpec, number: int, layers: tuple[int, ...] | None = None
) -> Stage:
    return stage_of(
        spec,
        units_of_stage(spec, layers or case.layers_of_stages, number),
        case.sequence_length,
        seed=case.seed,
        recovery=case.recovery,
        emulation=case.emulation,
    )
