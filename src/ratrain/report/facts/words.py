"""Words that the pages of runs, plans and jobs share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ratrain.cost.precision import dtype_words, travel_words
from ratrain.describe.ranges import RANKS, write_degrees, write_list, write_ranges
from ratrain.describe.units import counted, format_time
from ratrain.program.setup import Setup
from ratrain.program.strategies import STRATEGIES
from ratrain.report.contents import TimelinePanel
from ratrain.report.facts.memory import CURVES
from ratrain.report.facts.stages import CARDS
from ratrain.timeline.timeline import Timeline


def case_facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A case's facts, as `plan/case/words.py` and a run's case.json have them, in words."""
    unlike = facts.get("replicas", ())
    schedule = str(facts["schedule"])
    if facts["without"]:
        schedule += f" without {', '.join(facts['without'])}"
    usual = STRATEGIES.get(str(facts["schedule"]))
    if usual is not None and facts.get("order", usual.skeleton) != usual.skeleton:
        schedule += f", order {facts['order']}"
    counts = sorted(set(facts["micro_batches"]))
    return [
        ("Layout", counted(facts["data"], "replica") if unlike else _degrees(facts)),
        *((f"Replica {write_ranges(each['numbers'])}", _cut(each)) for each in unlike),
        ("Schedule", schedule),
        *((("Activations", str(facts["activations"])),) if facts["activations"] else ()),
        (
            "Gradients",
            f"{facts['gradients']}, sharding level {facts['sharding']} (ZeRO-{facts['sharding']})",
        ),
        *(("Network", words) for words in _travels(facts)),
        ("Micro-batches", f"{' or '.join(map(str, counts))} per replica and step"),
        ("Sequence length", f"{facts['sequence_length']:,} tokens"),
    ]


def _degrees(facts: Mapping[str, Any]) -> str:
    """A layout's degrees."""
    degrees = f"pipeline {facts['pipeline']} x data {facts['data']}"
    degrees += f" x tensor {facts['tensor']}" if facts["tensor"] > 1 else ""
    degrees += f", {facts['virtual']} stages per rank" if facts["virtual"] > 1 else ""
    return degrees + (", sequence parallel" if facts["sequence_parallel"] else "")


def _cut(replica: Mapping[str, Any]) -> str:
    """A replica's layers on each rank, its share of a step, and what it keeps."""
    layers = "+".join(map(str, replica["layers_per_stage"]))
    degrees = write_degrees(replica["tensor"]) if max(replica["tensor"]) > 1 else ""
    tensor = f", tensor degree {degrees}" if degrees else ""
    sizes = replica.get("micro_batch_of_ranks", ())  # runs of earlier versions do not say them
    at_once = (
        f", {write_list(sizes, RANKS)} sequences at once per rank" if len({*sizes}) > 1 else ""
    )
    return (
        f"{layers} layers{tensor}, {replica['micro_batches']} micro-batches of "
        f"{replica['micro_batch']}{at_once}, activations {replica['activations']}"
    )


def _travels(facts: Mapping[str, Any]) -> Iterator[str]:
    """Which kinds of device compute in another dtype, what is sent narrower than it is computed,
    and error feedback. Runs of earlier versions
    do not say it, and have neither."""
    dtype = facts.get("dtype") or ""
    gradients, boundaries = (facts.get(key) or dtype for key in ("gradient_wire", "boundary_wire"))
    feedback = bool(facts.get("error_feedback"))
    words = travel_words(dtype, gradients, boundaries, error_feedback=feedback)
    yield from filter(None, (dtype_words(facts.get("dtypes") or {}, dtype), words))


def left_out_of(panels: Sequence[TimelinePanel], step: Timeline, setup: Setup) -> Iterator[str]:
    """What the page does not show of its timeline and memory."""
    if panels:
        ranks = len({span.rank for span in step.spans})
        drawn = len(panels[0].rows)
        if drawn < ranks:
            yield (
                f"The timeline draws {drawn} of {ranks} ranks: the first, the last, and others "
                "evenly between."
            )
    for panel in panels:
        if panel.merged_below_s is not None:
            yield (
                f"Of {panel.ops:,} ops {panel.title}, those shorter than "
                f"{format_time(panel.merged_below_s)} are drawn together, each kind by its share."
            )
    if setup.ranks > CURVES:
        yield f"Memory over time is shown for {CURVES} of {setup.ranks} ranks, bounds for all."
    deepest = max(replica.ranks for replica in setup.replicas)
    if deepest > CARDS:
        yield f"The plan's picture shows the first {CARDS} of {deepest} ranks of each pipeline."
    shapes, folded = len(setup.replicas), any(replica.count > 1 for replica in setup.replicas)
    alike = len({member.tensor for member in setup.members}) == 1
    of = f" of {setup.tensor}" if alike else ""
    if folded:
        group = f", one rank of each tensor group{of}" if setup.tensor > 1 else ""
        verb = "is" if shapes == 1 else "are"
        yield (
            f"{shapes} of {setup.data} replicas {verb} drawn{group}: the others do the same work."
        )
    elif setup.tensor > 1:
        yield f"One rank of each tensor group{of} is drawn: the others do the same work."
