from dataclasses import replace

import average_family  # noqa: F401  # declares its states, and what checkpoints hold of them

from ratrain.plan.price import declare_cost
from ratrain.program.kind import Kind, Lane, Scope, Waiting, declare_lane
from ratrain.program.rules import declare
from ratrain.program.strategies import declare_pass

AVERAGING = declare_lane("AVERAGING", Waiting.OFFLOAD, "away")


def uses(b, ops):  # new master weights and the average in, the average out
    average = b.lasting("average", ops)
    b.reads(ops, b.at_step_end("optimizer", ops))
    b.reads(ops, average)
    b.writes(ops, average.next())


def add(rank_ops, op, step):  # runs it: a hundredth of the way to the new weights
    for part in rank_ops.unit(op).parts:
        part.beside["average"].tensor.lerp_(part.weights.cpu(), 0.01)


def weight_average(program):  # one after each update, on a lane of their own
    def after_updates(rank, lane, actions):
        updates = [a for a in program.lane(rank, Lane.UPDATE) if a.kind is Kind.UpdateShard]
        return [a._replace(kind=Kind.AddToAverage) for a in updates]

    setup = replace(program.setup, notes=(*program.setup.notes, "weight-average"))
    return program.edit("weight-average", AVERAGING, by=after_updates, setup=setup)


declare_cost("host average", lambda unit, device: unit.optimizer_bytes / 3 / 10e9)
declare(
    "AddToAverage",
    AVERAGING,
    Scope.UNIT,
    uses,
    cost="host average",
    method="weight_average:add",
    renews=("average",),
)
declare_pass("weight-average", weight_average)
