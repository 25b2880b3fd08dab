"""run.json and the program beside it describe the same ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import Case, cases

from ratrain.errors import SpecError
from ratrain.program.text import write_text
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.runtime.seats import seats_of

CHANGES: dict[str, Callable[[RunSpec], RunSpec]] = {
    "a deeper pipeline": lambda spec: replace(spec, pipeline=spec.pipeline + 1),
    "a shallower pipeline": lambda spec: replace(spec, pipeline=max(1, spec.pipeline - 1)),
    "wider tensor groups": lambda spec: replace(spec, tensor=spec.tensor + 1),
    "one replica more": lambda spec: replace(
        spec, data=spec.data + 1, replica_class=(*spec.replica_class, 0)
    ),
    "a replica of a class that is not there": lambda spec: replace(
        spec, replica_class=(*spec.replica_class[:-1], len(spec.first_rank))
    ),
    "a class that begins elsewhere": lambda spec: replace(
        spec, first_rank=(*spec.first_rank[:-1], spec.first_rank[-1] + 1)
    ),
    "other degrees": lambda spec: replace(
        spec,
        tensor=spec.tensor + 1,
        degrees=tuple(
            (spec.tensor + 1, *(spec.tensor for _ in range(depth - 1)))
            for depth in spec.depths or (spec.pipeline,) * len(spec.first_rank)
        ),
    ),
    "other depths": lambda spec: replace(
        spec, depths=tuple(depth + 1 for depth in spec.depths or (spec.pipeline,))
    ),
}


@settings(max_examples=40)
@given(cases(), st.sampled_from(sorted(CHANGES)))
def test_a_runs_file_that_contradicts_its_program_is_refused_by_name(
    case: Case, change: str
) -> None:
    setup = case.program.setup
    classes = [number for number, alike in enumerate(setup.replicas) for _ in range(alike.count)]
    members = [[d for d, c in enumerate(classes) if c == number] for number in sorted({*classes})]
    seats = seats_of(setup, members)
    spec = RunSpec(
        "job.toml",
        seats.pipeline,
        seats.data,
        seats.replica_class,
        seats.first_rank,
        *(1, "fp32", 1, 2),
        tensor=seats.tensor,
        depths=seats.depths,
        degrees=seats.degrees,
    )
    try:
        changed = CHANGES[change](spec)
    except SpecError:
        return  # contradicts itself: no such run.json can be read
    with TemporaryDirectory() as path:
        folder = RunFolder(Path(path))
        folder.write_spec(spec, case.program)
        assert write_text(folder.read_program()) == write_text(case.program)
        folder.write_spec(changed, case.program)
        if changed.seats == spec.seats:
            return
        with pytest.raises(SpecError, match="does not describe the ranks"):
            folder.read_setup()
