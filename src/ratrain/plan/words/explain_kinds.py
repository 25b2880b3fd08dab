"""What a plan has to say of each kind of its devices, and of sums inside a chip, in words and as
JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from ratrain.describe.ranges import STAGES, write_degrees, write_list, write_ranges
from ratrain.describe.units import counted, format_bytes, format_time
from ratrain.plan.case.case import Case
from ratrain.plan.case.kinds import FASTER, NOTABLE, RING, KindPart, KindPlace, OnChip, WhatIf
from ratrain.plan.search.other_devices import DEFINITION, Added, Alone, Speedup
from ratrain.plan.search.tried import Tried
from ratrain.plan.words.planned import WIDTH, table_lines, wrapped

_PLAN = "plan; activations"
_UNBROKEN = "\N{NO-BREAK SPACE}"


# ---- by kind -----------------------------------------------------------------------------


def kinds_text(parts: Sequence[KindPart], step_s: float) -> Iterator[str]:
    """Each kind of device: its place, its time, its memory, what binds it."""
    unlike = len({part.dtype for part in parts}) > 1
    for part in parts:
        used = f"{counted(len(part.devices), 'device')} ({write_ranges(part.devices)})"
        share = f", {100 * part.work_share:.1f} % of the layers' work"
        yield from wrapped(f"{part.kind.name}: {used + share if part.devices else 'idle'}")
        for place in part.places:
            yield from _labelled("holds", place_words(place))
        if unlike and part.devices:
            yield from _labelled("dtype", f"computes in {part.dtype}")
        if part.idle:
            yield from _labelled(
                "idle", f"{counted(len(part.idle), 'device')}, {write_ranges(part.idle)}"
            )
        if part.devices:
            yield from _labelled("busy", busy_words(part))
            yield from _labelled("memory", memory_words(part))
            binds, *further = binding_words(part, step_s)
            yield from _labelled("binds", binds)
            for words in further:
                yield from _labelled("helps", words)


def _labelled(label: str, text: str) -> list[str]:
    """Lines that begin with a label, and go on under their text."""
    whole = text.replace(" %", f"{_UNBROKEN}%")
    lines = wrap(whole, WIDTH, initial_indent=f"  {label:<8}", subsequent_indent=" " * 10)
    return [line.replace(_UNBROKEN, " ") for line in lines]


def place_words(place: KindPlace) -> str:
    """ "stage 0 of 3 (rank 1): embedding, 5 layers; 15 micro-batches of 1"."""
    stages = f"stage{'s' * (len(place.stages) > 1)} {write_ranges(place.stages)}"
    ranks = f"rank{'s' * (len(place.ranks) > 1)} {write_ranges(place.ranks)}"
    count = sum(place.layers)
    layers = counted(count, "layer")
    layers += f" ({write_list(place.layers, STAGES)})" if len(place.layers) > 1 else ""
    parts = ["embedding"] * place.embedding + [layers] * (count > 0) + ["head"] * place.head
    tensor = f"; tensor degree {write_degrees(place.tensor)}" if max(place.tensor) > 1 else ""
    alike = f", {place.replicas} replicas alike" if place.replicas > 1 else ""
    share = f"{place.micro_batches:,} micro-batch{'es' * (place.micro_batches != 1)}"
    if set(place.served) != {place.micro_batches}:
        share = f"{_by_stage(place.served)} of {share}"
    joined = ""
    if set(place.at_once) != {place.micro_batch}:
        several = "s" * (max(place.at_once) > 1)
        joined = f", {_by_stage(place.at_once)} sequence{several} at once"
    return (
        f"{stages} of {place.of_stages} ({ranks}{alike}): {', '.join(parts)}{tensor}; "
        f"{share} of {place.micro_batch}{joined}"
    )


def _by_stage(counts: Sequence[int]) -> str:
    """ "8", or where the stages held differ "stage by stage 16, 8"."""
    if len(set(counts)) == 1:
        return f"{counts[0]:,}"
    return f"stage by stage {write_list(counts, STAGES)}"


def busy_words(part: KindPart) -> str:
    """Where its devices' time goes, in parts of the step."""
    recovering = f", recovering {_percent(part.recovery_share)}" if part.recovery_share else ""
    return (
        f"computing {_percent(part.compute_share)} of the step{recovering}, waiting for links "
        f"{_percent(part.links_share)}, for other ranks and updates {_percent(part.others_share)}"
    )


def memory_words(part: KindPart) -> str:
    """Its fullest rank beside its budget."""
    if part.fullest is None:
        return "nothing proved: the program is not sound"
    budget = "" if part.budget_bytes is None else f" of {format_bytes(part.budget_bytes)}"
    over = part.over_budget_bytes
    beyond = f", {format_bytes(over)} over its budget" if over else ""
    return (
        f"rank {part.fullest.rank} is the fullest: at most "
        f"{format_bytes(part.fullest.total_bytes)}{budget}{beyond}"
    )


def binding_words(part: KindPart, step_s: float) -> Iterator[str]:
    """What binds it first, then what else would help."""
    ranked = sorted(part.what_ifs, key=lambda what_if: what_if.step_time_s)
    helping = [each for each in ranked if each.step_time_s < step_s * (1 - NOTABLE)]
    if part.over_budget_bytes:
        yield f"memory: its fullest rank is {format_bytes(part.over_budget_bytes)} over budget"
    elif helping:
        best = helping.pop(0)
        yield f"{best.resource}: {gain_words(best, step_s)}"
    elif part.binds(step_s) == "compute":
        yield (
            "compute, in balance with other kinds: faster devices or links of this kind alone "
            "would wait for the rest"
        )
    else:
        yield (
            "other kinds: faster devices or links of this kind would not shorten the step; "
            f"its ranks wait for others {_percent(part.others_share)} of the step"
        )
    for each in helping:
        yield gain_words(each, step_s)


def gain_words(what_if: WhatIf, step_s: float) -> str:
    """ "with links 2 times as fast, a step would take 18.4 s, 10.6 % less"."""
    better = {
        "compute": f"devices {FASTER:g} times as fast",
        "links": f"links {FASTER:g} times as fast",
        "memory": f"{format_bytes(what_if.missing_bytes)} more memory, to keep every activation",
        "recovery": "every activation kept, for which there is room",
    }
    less = _percent(1 - what_if.step_time_s / step_s)
    step = format_time(what_if.step_time_s)
    return f"with {better[what_if.resource]}, a step would take {step}, {less} less"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


# ---- the heterogeneous speedup ratio -------------------------------------------------------


def speedup_text(speedup: Speedup) -> Iterator[str]:
    """The ratio, what it is made of, and what it means."""
    yield from wrapped(speedup_words(speedup))
    columns = ("alone", False), ("devices", True), ("tokens/s", True), (_PLAN, False)
    yield from table_lines(columns, map(_alone_row, speedup.alone), indent="  ")
    for kind_alone in speedup.missing:
        yield from wrapped(f"{kind_alone.kind.name} alone: {kind_alone.problem}.")
    for kind_alone in speedup.faster[:1]:
        times = (kind_alone.tokens_per_s or 0.0) / speedup.tokens_per_s
        faster = f"{times:.2f} times as fast as this plan"
        yield from wrapped(f"{kind_alone.kind.name} alone is {faster}: leave the others idle.")
    yield from wrapped(
        f"The ratio is {DEFINITION}. Above 1 the kinds do more together than each by itself."
    )


def _alone_row(alone: Alone) -> tuple[str, ...]:
    used = "" if alone.used == alone.devices else f" of {alone.devices}"
    tokens = "-" if alone.tokens_per_s is None else f"{alone.tokens_per_s:,.1f}"
    return alone.kind.name, f"{alone.used}{used}", tokens, _plan_words(alone.best) or "none"


def speedup_words(speedup: Speedup) -> str:
    """The ratio in one sentence; where a kind alone has no plan, the one over those that have."""
    if speedup.ratio is None:
        return "No heterogeneous speedup ratio: no kind of device alone has a plan."
    sums = f"{speedup.tokens_per_s:,.1f} tokens/s over {speedup.together_tokens_per_s:,.1f}"
    if speedup.hsr is not None:
        return f"Heterogeneous speedup ratio {speedup.hsr:.3f}: {sums}, the sum of each kind alone."
    missing = [kind_alone.kind.name for kind_alone in speedup.missing]
    has = "has" if len(missing) == 1 else "have"
    return (
        f"No heterogeneous speedup ratio: {' and '.join(missing)} alone {has} no plan. Ratio "
        f"over {' and '.join(_over(speedup))} alone: {speedup.ratio:.3f}, {sums}."
    )


def _over(speedup: Speedup) -> list[str]:
    """The kinds that have a plan alone."""
    return [each.kind.name for each in speedup.alone if each.tokens_per_s is not None]


def _plan_words(found: Tried | None) -> str:
    return "" if found is None else Case(found.plan).in_brief


# ---- one more host -----------------------------------------------------------------------


def added_text(added: Sequence[Added], step_s: float) -> Iterator[str]:
    """The step with one more host of each kind, beside the fastest one known without."""
    yield from wrapped(
        f"With one more host of a kind (or the fewest hosts that a layout can use), planned again; "
        f"as it is, the fastest known plan takes {format_time(step_s)}:"
    )
    numbers = [(heading, True) for heading in ("devices", "step", "change")]
    columns = ("added", False), *numbers, (_PLAN, False)
    yield from table_lines(columns, [_added_row(each, step_s) for each in added], indent="  ")
    for each in added:
        if each.best is None:
            yield from wrapped(f"{each.kind.name}: {each.problem}.")


def _added_row(added: Added, step_s: float) -> tuple[str, ...]:
    head = added.kind.name, f"{added.devices}"
    if added.step_s is None or added.step_s >= step_s:
        words = "none" if added.best is None else "no faster plan: leave it idle"
        return *head, "-", "-", words
    change = f"{100 * (added.step_s / step_s - 1):+z.1f} %"
    return *head, format_time(added.step_s), change, _plan_words(added.best)


# ---- JSON --------------------------------------------------------------------------------


_KEYS = {"layers": "layers_per_stage", "at_once": "sequences_at_once"}


def part_json(part: KindPart, step_s: float) -> dict[str, Any]:
    """A kind of device in a plan."""
    shares = ("work", "compute", "recovery", "links", "others")
    return {
        "kind": part.kind.name,
        "devices": list(part.devices),
        "idle_devices": list(part.idle),
        "places": [
            {_KEYS.get(key, key): of for key, of in asdict(place).items() if key != "replica"}
            for place in part.places
        ],
        **{f"{name}_share": getattr(part, f"{name}_share") for name in shares},
        "fullest_rank": None if part.fullest is None else part.fullest.rank,
        "bound_bytes": None if part.fullest is None else part.fullest.total_bytes,
        "budget_bytes": part.budget_bytes,
        "dtype": part.dtype,
        "binds": part.binds(step_s),
        "what_if": list(map(asdict, part.what_ifs)),
    }


def speedup_json(speedup: Speedup | None) -> dict[str, Any] | None:
    if speedup is None:
        return None
    return {
        "hsr": speedup.hsr,
        "ratio": speedup.ratio,
        "over": _over(speedup),
        "definition": DEFINITION,
        "tokens_per_s": speedup.tokens_per_s,
        "alone": [
            {
                "kind": each.kind.name,
                "devices": each.devices,
                "used_devices": each.used,
                "tokens_per_s": each.tokens_per_s,
                "problem": each.problem,
                "plan": _plan_json(each.best),
            }
            for each in speedup.alone
        ],
    }


def added_json(added: Sequence[Added]) -> list[dict[str, Any]]:
    return [
        {
            "kind": each.kind.name,
            "hosts": each.hosts,
            "devices": each.devices,
            "step_time_s": each.step_s,
            "problem": each.problem,
            "plan": _plan_json(each.best),
        }
        for each in added
    ]


def _plan_json(found: Tried | None) -> dict[str, Any] | None:
    return None if found is None else Case(found.plan).plan_json()


_WAYS = {
    "hardware": "reduction and multicast in the network",
    "software": "trees of messages",
    RING: "a ring over the link",
}


def on_chip_text(found: OnChip, step_s: float) -> Iterator[str]:
    """A line for each way."""
    network = found.network
    shape = f"{network.columns} x {network.rows} devices"
    if network.tree_hops:
        shape = f"{network.columns} devices on a network of its own shape"
    yield from wrapped(
        f"Inside a chip ({shape}, {network.clock_ghz:g} GHz) "
        f"a sum of {format_bytes(found.size_bytes)} over {found.devices} devices takes, by"
    )
    for way in found.ways:
        change = 100 * (way.step_time_s / step_s - 1)
        step = f"a step {format_time(way.step_time_s)}"
        then = "as planned" if way.used else f"{change:+.2f} %"
        yield f"  {_WAYS[way.by]:<36}{format_time(way.sum_s):>9}, {step}, {then}"


def on_chip_json(found: OnChip | None) -> dict[str, Any] | None:
    """The same figures; None: no sums are inside chips whose network is known."""
    if found is None:
        return None
    return {
        "devices": found.devices,
        "size_bytes": found.size_bytes,
        "ways": [asdict(way) for way in found.ways],
    }
