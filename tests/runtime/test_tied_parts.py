"""Which part of a tied matrix each rank adds up with the other end of its pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from launched import made
from runs_made import Setting

from ratrain.devices import CPU
from ratrain.errors import SpecError
from ratrain.models.units import unit_of
from ratrain.plan.layout.jobs import load_job
from ratrain.program.actions import Kind, Lane
from ratrain.runtime.step.exchange.narrowing import Wire
from ratrain.runtime.step.schedule import schedule_of
from ratrain.runtime.step.states import Numbers, rank_states
from ratrain.runtime.step.tied import tied_gradients
from ratrain.runtime.step.tied_program import require_tied


def exchanged(folder: Path, setting: Setting) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(end, replica) -> ranges of the flat buffers that its ranks' TieSyncs add up, by unit."""
    run = made(folder, setting)
    spec, program = run.read_spec(), run.read_program()
    job = load_job(spec.job_path)
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for seat in spec.seats.all():
        states = rank_states(
            schedule_of(program, seat.program_rank),
            spec.seats,
            seat,
            lambda name: unit_of(job.model.spec, name, sequence_length=16),
            lambda _unit, _kind, low, high: torch.zeros(high - low),
            [Numbers(torch.float32, torch.float32)] * spec.seats.world_size,
            Wire(torch.float32, torch.float32),
            CPU,
            job.train.rule,
        )
        for unit in states.units:
            if unit.name in ("e", "h"):
                unit.gradient = torch.arange(unit.padded, dtype=torch.float32)
                own = [value for copy in tied_gradients(unit) for value in copy.gradient.tolist()]
                ends = (int(own[0]), int(own[-1]) + 1) if own else (0, 0)
                ranges.setdefault((int(unit.name == "h"), seat.data), []).append(ends)
    return ranges


@pytest.mark.slow
@given(
    layout=st.sampled_from([(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (3, 2)]),
    sharding=st.integers(0, 3),
    vocab=st.integers(50, 90).map(lambda tenths: tenths * 10),
)
@settings(max_examples=12, deadline=None)
def test_owners_at_both_ends_have_the_same_part_and_together_all_of_it(
    layout: tuple[int, int],
    sharding: int,
    vocab: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    hidden, data = 32, layout[1]
    model = (("tie_word_embeddings", True), ("vocab_size", vocab))
    setting = Setting(model=model, sharding=sharding, sequences=8).at(layout)
    exchanged_ranges = exchanged(tmp_path_factory.mktemp("run"), setting)
    for replica in range(data):
        assert exchanged_ranges[0, replica] == exchanged_ranges[1, replica]
    parts = [exchanged_ranges[0, replica][0] for replica in range(data)]
    if sharding and data > 1:
        covered = [at for begin, end in parts for at in (begin, end) if begin < end]
        assert covered[0] == 0 and covered[-1] == vocab * hidden
        assert all(a == b for a, b in zip(covered[1:-1:2], covered[2:-1:2], strict=True))
        assert max(end - begin for begin, end in parts) < vocab * hidden * 1.1 / data + 64
    else:
        assert set(parts) == {(0, vocab * hidden)}


def test_a_program_that_adds_ties_up_ahead_of_their_reduction_is_refused(tmp_path: Path) -> None:
    setting = Setting(model=(("tie_word_embeddings", True),), pipeline=2, data=2)
    run = made(tmp_path, setting)
    model, program = load_job(run.read_spec().job_path).model.spec, run.read_program()
    require_tied(model, program)
    key = (0, Lane.REDUCE)
    actions = sorted(program.lanes[key], key=lambda action: action.kind is not Kind.TieSync)
    older = program.edit("older", Lane.REDUCE, by=lambda *_: actions)
    with pytest.raises(SpecError, match="before it reduces them, as older versions did"):
        require_tied(model, older)
