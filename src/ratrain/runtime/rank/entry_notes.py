"""What people are told where a run begins with more than a checkpoint holds, or with less."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from ratrain.checkpoint.listing import read_manifest
from ratrain.checkpoint.manifest import Manifest
from ratrain.checkpoint.own import own_kinds, shared_kind
from ratrain.describe.saved import SAVED, WEIGHTS, saved_as
from ratrain.objects.remote import Location
from ratrain.program.program import Program
from ratrain.runtime.run_folder import RunFolder
from ratrain.runtime.step.tensor_parts import unit_of_stored

Owners = Mapping[str, Mapping[str, int]]
"""By entry and unit: how many ranks, replicas or sites have it each by itself; 1: one for all."""


def note_entries(folder: RunFolder, chosen: Location, program: Program) -> None:
    """Leaves a line for each entry that the run begins otherwise than a checkpoint has it."""
    runs, stored = _of_program(program), _of_checkpoint(read_manifest(chosen))
    for name in dict.fromkeys((*runs, *stored)):
        ran, had = runs.get(name, {}), stored.get(name, {})
        entry, lacking, left = saved_as(name), ran.keys() - had.keys(), had.keys() - ran.keys()
        if lacking:
            some = f" of {len(lacking)} units" if had else ""
            begins = entry.begins or "zero"
            folder.add_note(f"{chosen.name} holds no {name}{some}: it begins with {begins}")
        if left:
            some = f" of {len(left)} units" if ran else ""
            folder.add_note(
                f"{chosen.name} holds {name}{some}, which the run has not: it is left out"
            )
        if other := [u for u in had.keys() & ran.keys() if had[u] > 1 and had[u] != ran[u]]:
            before, now = (max(of[unit] for unit in other) for of in (had, ran))
            folder.add_note(
                f"{chosen.name} holds {name} of {before}, each its own, the run has {now}: "
                f"{entry.regrouped}"
            )


def _of_program(program: Program) -> Owners:
    """What ranks hold of each unit besides what its optimizer does."""
    setup, states = program.setup, program.table.states
    units = [unit for member in setup.members for unit in member.units]
    apart = setup.apart if setup.averages.by_turns else 1
    owners: dict[str, dict[str, int]] = defaultdict(dict)
    for saved in SAVED.declared:
        has = np.array([saved.name == WEIGHTS and unit.optimizer_bytes > 0 for unit in units])
        if saved.family and saved.asked(setup) and (family := states.by_name[saved.family]).count:
            has = states.size_bytes[family.start : family.start + family.count] > 0
        for g in np.flatnonzero(has).tolist():
            name = units[g].name
            own = setup.holders[name] if saved.whole else apart
            owners[saved.name][name] = own if saved.is_own(apart=apart > 1) else 1
    return owners


def _of_checkpoint(manifest: Manifest) -> Owners:
    """The same of what one holds, but for an optimizer's states."""
    owners: dict[str, dict[str, int]] = defaultdict(dict)
    for stored in manifest.meta.units:
        kinds = manifest.kinds_of(stored)
        for name in map(shared_kind, kinds):
            if name == WEIGHTS or saved_as(name).begins is not None:
                owners[name][unit_of_stored(stored)] = len(own_kinds(name, kinds)) or 1
    return owners
