"""The plan as a picture: ranks as cards in the order of the pipeline, links between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ratrain.report.contents import Card, Chain, IdleDevices, PlanPicture
from ratrain.report.figures.frame import UNKNOWN, legend, section, size
from ratrain.report.groups import shown_groups
from ratrain.report.html import Markup, Styles, details, join, table, tag

_FEW = 4
"""From more ranks than this on, cards are narrower."""
_TICKS = 24
"""Layers drawn as ticks; of more, the number alone is given."""


def plan_section(plan: PlanPicture, styles: Styles) -> Markup:
    keys = {key for chain in plan.chains for card in chain.cards for key in card.memory}
    return section(
        "plan",
        "Plan",
        "Stages on their devices, in the order in which a micro-batch passes them. The bar is "
        "the proven peak memory; its full width is the device's budget.",
        tag(
            "dl",
            (tag("div", tag("dt", name), tag("dd", value)) for name, value in plan.facts),
            (
                tag("div", tag("dt", f"Link {ends}"), tag("dd", link))
                for ends, link in plan.group_links
            ),
            class_="facts",
        ),
        legend((f"m-{group.key}", group.name) for group in shown_groups(keys)),
        (_chain(chain, styles, len(plan.chains) > 1) for chain in plan.chains),
        _idle(plan.idle) if plan.idle else None,
        details("Plan as a table", _table(plan)),
    )


def _chain(chain: Chain, styles: Styles, several: bool) -> Markup:
    same_links = len(set(chain.links)) <= 1
    count = f"{chain.replicas} replicas alike" if chain.replicas > 1 else "1 replica"
    heading = [count] if several or chain.replicas > 1 else []
    heading = [chain.share] if chain.share else heading
    heading += [f"every link {chain.links[0]}"] if chain.links and same_links else []
    return join(
        tag("h3", "; ".join(heading)) if heading else None,
        tag(
            "ol",
            (
                _card(card, styles, None if same_links else _link(chain, at))
                for at, card in enumerate(chain.cards)
            ),
            class_=" ".join(_classes(chain)),
        ),
    )


def _idle(idle: Sequence[IdleDevices]) -> Markup:
    """Devices on which nothing runs, one card for each kind."""
    count = sum(each.count for each in idle)
    return join(
        tag("h3", f"{count} device{'s' * (count > 1)} idle"),
        tag(
            "ol",
            (
                tag(
                    "li",
                    tag("div", tag("b", "idle"), class_="row"),
                    tag("div", join(each.device, tag("br"), each.devices), class_="device"),
                    tag("div", "no stage is placed here", class_="muted"),
                    class_="idle",
                )
                for each in idle
            ),
            class_="chain",
        ),
    )


def _classes(chain: Chain) -> Iterator[str]:
    yield "chain"
    if len(chain.cards) > _FEW:
        yield "many"
    if chain.in_order:
        yield "in-order"


def _link(chain: Chain, at: int) -> str | None:
    return chain.links[at] if at < len(chain.links) else None


def _card(card: Card, styles: Styles, link: str | None) -> Markup:
    count = card.layer_count
    over_budget = card.budget_bytes is not None and card.bound_bytes > card.budget_bytes
    return tag(
        "li",
        tag("div", tag("b", card.stages), tag("span", f"rank {card.rank}"), class_="row"),
        tag("div", join(card.device, tag("br"), card.devices), class_="device")
        if card.device
        else None,
        tag("div", (tag("i") for _ in range(count)), class_="ticks", aria_hidden="true")
        if 0 < count <= _TICKS
        else None,
        tag("div", card.layers),
        tag("div", card.recovery, class_="muted"),
        memory_bar(card.memory, card.bound_bytes, card.budget_bytes, styles),
        tag("div", _of_budget(card), class_="bad" if over_budget else "muted"),
        tag("div", link, class_="link") if link else None,
    )


def _of_budget(card: Card) -> str:
    if card.budget_bytes is None:
        return size(card.bound_bytes)
    return f"{size(card.bound_bytes)} of {size(card.budget_bytes)}"


def memory_bar(
    memory: Mapping[str, int], bound_bytes: int, budget_bytes: int | None, styles: Styles
) -> Markup:
    """Groups side by side. The whole width is the budget, or the bound where that is more."""
    whole_bytes = max(bound_bytes, budget_bytes or 0) or 1
    parts = [
        tag(
            "i",
            class_=f"m-{group.key} {styles.width(memory[group.key] / whole_bytes)}",
            title=f"{group.name} {size(memory[group.key])}",
        )
        for group in shown_groups(memory)
    ]
    return tag("div", parts, class_="bar")


def _table(plan: PlanPicture) -> Markup:
    cards = [(chain, card) for chain in plan.chains for card in chain.cards]
    rows = [
        (
            f"{card.rank}",
            card.stages,
            card.layers,
            card.recovery,
            f"{card.device} {card.devices}".strip() or UNKNOWN,
            f"{chain.replicas}",
            size(card.bound_bytes),
            size(card.budget_bytes),
        )
        for chain, card in cards
    ]
    rows += [
        (UNKNOWN, "idle", *2 * (UNKNOWN,), f"{each.device} {each.devices}", *3 * (UNKNOWN,))
        for each in plan.idle
    ]
    return table(
        ("Rank", "Stages", "Holds", "Activations", "Device", "Replicas", "Proven", "Budget"),
        rows,
        caption="What each rank holds",
        text=range(5),
    )
