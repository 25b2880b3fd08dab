"""A lane of one's own that carries collectives: after each update all ranks that hold a unit
compare what they have of its weights."""

from __future__ import annotations

from typing import Any

import torch

from ratrain.plan.price import declare_cost
from ratrain.program.kind import Kind, Lane, Partners, Scope, Waiting, declare_lane
from ratrain.program.program import Program
from ratrain.program.rules import declare
from ratrain.program.strategies import declare_pass

COMPARING = declare_lane("COMPARING", Waiting.GATHER)
compared: list[tuple[int, str]] = []


def uses(b: Any, ops: Any) -> None:
    b.reads(ops, b.at_step_end("optimizer", ops))


def compare(rank_ops: Any, op: Any, step: int) -> None:
    unit = rank_ops.unit(op)
    own = unit.part.weights.clone()
    mean, sums = own.clone(), torch.zeros(len(unit.holders), dtype=torch.float64)
    rank_ops.network.reduce(mean, mean[unit.owned], unit.holders, lane=op.lane)
    rank_ops.network.gather(op.lane, mean, unit.holders)
    sums[unit.place] = own.double().sum()
    rank_ops.network.gather(op.lane, sums, unit.holders)
    assert sums.unique().numel() == 1, f"holders of {unit.name} differ behind step {step}"
    assert torch.allclose(mean / len(unit.holders), own, rtol=1e-6, atol=0)
    compared.append((step, unit.name))


def after_updates(program: Program) -> Program:
    def comparisons(rank: int, _lane: Lane, _actions: Any) -> Any:
        updates = [a for a in program.lane(rank, Lane.UPDATE) if a.kind is Kind.UpdateShard]
        return [action._replace(kind=Kind.named("Compare")) for action in updates]

    return program.edit("compared", COMPARING, by=comparisons)


declare_cost("a comparison", lambda unit, _device: unit.optimizer_bytes / 3 / 1e9)
declare(
    "Compare",
    COMPARING,
    Scope.UNIT,
    uses,
    partners=Partners.HOLDERS,
    cost="a comparison",
    method="compared:compare",
)
declare_pass("compared", after_updates)
