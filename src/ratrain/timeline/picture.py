"""Timelines as one SVG picture: a row a rank, time to the right, the same scale for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from ratrain.timeline.compare import kind_of
from ratrain.timeline.timeline import Span, Timeline

_WIDTH, _LEFT, _ROW, _THIN, _GAP = 960, 64, 22, 6, 6
_COLOUR = {
    "F": "#4c78a8",
    "B": "#59a14f",
    "I": "#59a14f",
    "W": "#8cd17d",
    "R": "#f2a33c",
}
_MESSAGE, _STATE = "#b8b8b8", "#9c6bb0"
_LEGEND = (
    ("forward", _COLOUR["F"]),
    ("backward", _COLOUR["B"]),
    ("recovery", _COLOUR["R"]),
    ("messages", _MESSAGE),
    ("gradients, updates, views", _STATE),
)


def svg(panels: Mapping[str, Timeline], *, step: int | None = None) -> str:
    """A panel for each title. `step` picks one step of each timeline; None draws all.

    The wide bar of a row is the rank's compute lane, with the micro-batch in it; the thin bar
    under it shows messages, and state work on the network and in the optimizer.
    """
    shown = {title: _one_step(timeline, step) for title, timeline in panels.items()}
    length_s = max(max(span.end_s for span in spans) for spans in shown.values())
    scale = (_WIDTH - _LEFT - 10) / length_s
    body: list[str] = []
    top = 8.0
    for title, spans in shown.items():
        end_s = max(span.end_s for span in spans)
        body.append(_text(8, top + 12, f"{title}: {_seconds(end_s)}", weight="bold"))
        top += 22
        for rank in sorted({span.rank for span in spans}):
            body.append(_text(8, top + 15, f"rank {rank}"))
            body += _row((span for span in spans if span.rank == rank), top, scale)
            top += _ROW + _THIN + _GAP
        top += 12
    body += _legend(top)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 24:.0f}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" '
        f'fill="#ffffff"/>{"".join(body)}</svg>\n'
    )


def _one_step(timeline: Timeline, step: int | None) -> list[Span]:
    """The spans of a step, moved so that the first one starts at zero."""
    spans = [span for span in timeline.spans if step is None or span.step == step]
    origin_s = min(span.start_s for span in spans)
    return [
        Span(s.step, s.rank, s.lane, s.word, s.start_s - origin_s, s.end_s - origin_s)
        for s in spans
    ]


def _row(spans: Iterator[Span], top: float, scale: float) -> Iterator[str]:
    for span in spans:
        if span.end_s <= span.start_s:
            continue
        left, width = _LEFT + span.start_s * scale, max(span.length_s * scale, 0.4)
        kind = kind_of(span.word)
        name = escape(f"{span.word} {_seconds(span.length_s)}")
        if span.lane == "compute":
            yield _box(left, top, width, _ROW, _COLOUR.get(kind, _STATE), name)
            micro_batch = span.word.rsplit(kind, 1)[-1]
            if width > 9 and micro_batch:
                yield _text(left + width / 2, top + 15, micro_batch, fill="#fff", anchor="middle")
        elif not span.lane.startswith("recv"):
            colour = _MESSAGE if span.lane.startswith("send") else _STATE
            yield _box(left, top + _ROW, width, _THIN, colour, name)


def _legend(top: float) -> Iterator[str]:
    left = float(_LEFT)
    for name, colour in _LEGEND:
        yield _box(left, top, 12, 12, colour, name)
        yield _text(left + 17, top + 10, name)
        left += 40 + 7 * len(name)


def _box(left: float, top: float, width: float, height: float, fill: str, title: str) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height}" fill="{fill}" '
        f'stroke="#fff" stroke-width="0.5"><title>{title}</title></rect>'
    )


def _text(
    left: float,
    top: float,
    text: str,
    *,
    fill: str = "#222",
    anchor: str = "start",
    weight: str = "",
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{left:.1f}" y="{top:.1f}" fill="{fill}" text-anchor="{anchor}"{bold}>'
        f"{escape(text)}</text>"
    )


def _seconds(time_s: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if time_s >= size:
            return f"{time_s / size:.3g} {unit}"
    return f"{time_s * 1e9:.3g} ns"
