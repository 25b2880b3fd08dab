"""The computed bubble rates of the zero-bubble paper, through our simulator.

Qi et al. 2023, arXiv 2401.10241 (its tables as rows of data/measured/zero_bubble_pipeline.csv):

    bubble rate = 1 - m (T_F + T_B + T_W) / T

where T is one step's time from its first op to its last backward, without reductions and
updates, and every message takes T_comm. A transformer stage of the paper counts the embedding
and the head as one layer each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

import numpy as np

from ratrain.program.actions import Action
from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.replicas import Replica, Unit, stage
from ratrain.program.setup import Setup
from ratrain.program.skeletons import SKELETONS, build
from ratrain.readers.csv import csv_table
from ratrain.readers.files import read_text
from ratrain.simulate.costs import Costs, OpCosts, costs_of_ops, fixed_work
from ratrain.simulate.engine import run

_COLUMN = {"1f1b": "bub_1f1b", "interleaved": "bub_1f1b_i", "zb-h1": "bub_zbh1"}
_NO_LINKS = np.zeros(0)


@dataclass(frozen=True)
class Setting:
    """A row of the table: a pipeline, its measured times, and the published bubble rates."""

    model: str
    ranks: int
    micro_batches: int
    chunks: int  # stages of a rank when interleaved: one layer each
    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    message_s: float
    published: dict[str, float]  # by skeleton

    @property
    def busy_s(self) -> float:
        """What every rank computes in one step."""
        per_micro_batch_s = self.forward_s + self.input_gradient_s + self.weight_gradient_s
        return self.micro_batches * per_micro_batch_s


def settings() -> tuple[Setting, ...]:
    """The rows of the table."""
    name = "zero_bubble_pipeline.csv"
    with resources.as_file(resources.files("ratrain.data") / "measured" / name) as path:
        text = read_text(path)
    return tuple(_setting(row) for row, _ in csv_table(text, name))


def _setting(row: dict[str, str]) -> Setting:
    ranks = int(row["p_gpus"])
    times = (float(row[key]) / 1e3 for key in ("TF_ms", "TB_ms", "TW_ms", "Tcomm_ms"))
    return Setting(
        row["model"],
        ranks,
        int(row["m"]),
        (int(row["layers"]) + 2) // ranks,
        *times,
        published={name: float(row[column]) for name, column in _COLUMN.items()},
    )


def bubble_rate(setting: Setting, skeleton: str, *, as_published: bool = False) -> float:
    """The bubble rate of a skeleton in a setting.

    `as_published` concerns the interleaved schedule alone: see `waits_left_out`.
    """
    program = plain(setting, skeleton)
    if as_published and SKELETONS[skeleton].chunks:
        program = waits_left_out(program)
    table = program.table
    ran = run(table, _costs(setting, program), _NO_LINKS, steps=1)
    compute = table.is_any(Kind.F, Kind.B, Kind.I, Kind.W)
    return 1 - setting.busy_s / float(ran.end_s[compute].max())


def waits_left_out(program: Program) -> Program:
    """The interleaved program without most of its messages between last and first rank.

    The program behind the published rates (github.com/sail-sg/zero-bubble-pipeline-parallelism,
    commit f68d387, megatron/core/pipeline_parallel/interleave.py, get_interleave_schedule) lets
    only the first micro-batch of each group of `ranks` wait for the tensor that goes round from
    the last rank to the first, and likewise for gradients. Its ramps so hold 5 P - 2 messages
    where ours hold 6 P - 2. No step can run like this: `verify` names the tensors read unwritten.
    """
    ranks = program.setup.ranks
    ends = {(Lane.SEND_F, ranks - 1), (Lane.RECV_F, 0), (Lane.SEND_B, 0), (Lane.RECV_B, ranks - 1)}

    def first_of_group(rank: int, lane: Lane, actions: tuple[Action, ...]) -> Iterator[Action]:
        for action in actions:
            if (lane, rank) not in ends or action.micro_batch % ranks == 0:
                yield action

    return program.edit("waits-left-out", *sorted({lane for lane, _ in ends}), by=first_of_group)


def plain(setting: Setting, skeleton: str) -> Program:
    """The plain program of a skeleton in a setting."""
    chunks = setting.chunks if SKELETONS[skeleton].chunks else 1
    stages = tuple(
        stage(number % setting.ranks, (Unit(str(number)),))
        for number in range(setting.ranks * chunks)
    )
    replica = Replica(stages, setting.micro_batches)
    return build(skeleton, Setup((replica,), split_backward=SKELETONS[skeleton].split_backward))


def _costs(setting: Setting, program: Program) -> OpCosts:
    units = len(program.table.states.units.rank)
    parts = units // setting.ranks
    time_s = {
        Kind.F: setting.forward_s / parts,
        Kind.B: (setting.input_gradient_s + setting.weight_gradient_s) / parts,
        Kind.I: setting.input_gradient_s / parts,
        Kind.W: setting.weight_gradient_s / parts,
        **{k: 0.0 for k in Kind if k.is_message or k.is_barrier or k is Kind.UpdateShard},
        Kind.SEND_F: setting.message_s,
        Kind.SEND_B: setting.message_s,
    }
    work = {kind: fixed_work(np.full(units, each_s)) for kind, each_s in time_s.items()}
    return costs_of_ops(program.table, Costs(work, _NO_LINKS))
