"""Checkpoints, samples, experts, versions, and what the page leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from ratrain.report.contents import ExpertLoads, Sample, SavedCheckpoint
from ratrain.report.figures.frame import notes, number, section, size
from ratrain.report.html import Markup, join, table, tag


def checkpoints_section(checkpoints: Sequence[SavedCheckpoint]) -> Markup:
    if not checkpoints:
        return section("checkpoints", "Checkpoints", "None was saved.")
    validated = any(saved.validation_loss is not None for saved in checkpoints)
    return section(
        "checkpoints",
        "Checkpoints",
        None,
        table(
            ("Step", "State", *(("Validation loss",) if validated else ()), "Size", "Path"),
            (
                (
                    f"{saved.step:,}",
                    _state(saved),
                    *((number(saved.validation_loss),) if validated else ()),
                    size(saved.size_bytes),
                    saved.path,
                )
                for saved in checkpoints
            ),
            caption="Saved checkpoints",
            text=(0, 1, 3 + validated),
        ),
    )


def samples_section(samples: Sequence[Sample]) -> Markup:
    return section(
        "samples",
        "Samples",
        "How the model went on with prompts while it was trained: its likeliest words.",
        table(
            ("After step", "Prompt", "Text"),
            ((f"{each.step:,}", each.prompt, each.text) for each in samples),
            caption="Samples",
            text=(1, 2),
        ),
    )


def experts_section(experts: ExpertLoads) -> Markup:
    layers = (
        (
            str(each.layer),
            str(each.busiest),
            f"{each.busiest_ratio:.2f}",
            str(each.unused),
            f"{each.longest_ratio:.2f}",
        )
        for each in experts.layers
    )
    ranks = ((str(each.rank), f"{each.tokens:,}", f"{each.ratio:.2f}") for each in experts.ranks)
    return section(
        "experts",
        "Experts",
        "How tokens were spread over experts; a token counts once for each that it chose.",
        notes(experts.words),
        table(
            ("Layer", "Busiest", "Over mean", "Without tokens", "Longest rank over even share"),
            layers,
            caption="Experts of each layer",
        )
        if experts.layers
        else None,
        table(
            ("Rank", "Tokens of its experts", "Over even share"), ranks, caption="Experts by rank"
        ),
    )


def _state(saved: SavedCheckpoint) -> Markup:
    state = "whole" if saved.whole else "damaged or incomplete"
    return join(state, ", ", tag("strong", "the best so far")) if saved.best else join(state)


def versions_section(versions: Sequence[tuple[str, str]]) -> Markup:
    return section(
        "versions",
        "Versions",
        None,
        tag(
            "dl",
            (tag("div", tag("dt", name), tag("dd", version)) for name, version in versions),
            class_="facts",
        ),
    )


def left_out_section(lines: Sequence[str]) -> Markup | None:
    if not lines:
        return None
    return section(
        "left-out", "Left out of this page", None, tag("ul", (tag("li", line) for line in lines))
    )
