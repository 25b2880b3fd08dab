"""Timelines as one SVG picture: a row for each rank, time to the right, the same scale for all.

The file stays small whatever the program: ops narrower than a pixel or two are drawn as columns
whose colours take the share of the time that their ops took (`boxes.py`), and of many ranks some
are chosen. The picture says both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ratrain.describe.units import format_time
from ratrain.timeline import palette
from ratrain.timeline.boxes import Box, boxes, micro_batch_of
from ratrain.timeline.palette import OpClass, ink_on
from ratrain.timeline.timeline import Span, Timeline

ROWS = 32
"""Ranks drawn for each panel, at most."""
COLUMNS = 6000
"""Columns over all rows, about: what bounds the size of the file."""
_WIDTH, _LEFT, _ROW, _THIN, _GAP = 960, 64, 22, 6, 6
_LETTER = 7.2
"""Room for a letter of the legend: at 12 pixels no common sans-serif face is wider on average."""
_SEAM = 3.0
"""From this width on, boxes are set apart by a seam of the background."""
_LEGEND = (
    palette.FORWARD,
    palette.BACKWARD,
    palette.RECOVERY,
    palette.MESSAGE,
    palette.REDUCE,
    palette.GATHER,
    palette.TENSOR,
    palette.UPDATE,
    palette.WEIGHTS,
    palette.DISK,
    palette.COPY,
    palette.PRODUCT,
    palette.VECTOR,
)


@dataclass(frozen=True)
class Panel:
    """One step to draw. `step_s` is the step time that the report states. The spans reach
    further: a step's last transfers run beside the next step's first ops."""

    title: str
    timeline: Timeline
    step_s: float | None = None


@dataclass(frozen=True)
class _Shown:
    """A panel's spans from zero, those of the ranks that are drawn alone."""

    panel: Panel
    ranks: list[int]
    left_out: int
    spans: list[Span]

    @property
    def end_s(self) -> float:
        return max(span.end_s for span in self.spans)

    @property
    def title(self) -> str:
        said = self.panel.title
        if self.panel.step_s is not None:
            said += f": a step takes {format_time(self.panel.step_s)}"
        else:
            said += f": {format_time(self.end_s)} from first op to last"
        if self.left_out:
            said += f" ({len(self.ranks)} of {len(self.ranks) + self.left_out} ranks drawn)"
        return said


def svg(panels: Sequence[Panel]) -> str:
    """The panels below each other, each from its first op to its last.

    The wide bar of a row is the rank's compute lane, with the micro-batch in it where there is
    room; the thin bar under it shows messages, and state work on the network and in the optimizer.
    """
    shown = [_shown(panel) for panel in panels]
    length_s = max(each.end_s for each in shown)
    scale = (_WIDTH - _LEFT - 10) / length_s
    rows = sum(len(each.ranks) for each in shown)
    resolution_s = max(1.5, (_WIDTH - _LEFT) * rows / COLUMNS) / scale
    body: list[str] = []
    used: set[OpClass] = set()
    merged, top = False, 8.0
    for each in shown:
        body.append(_text(8, top + 12, each.title, weight="bold"))
        top += 22
        for rank in each.ranks:
            body.append(_text(8, top + 15, f"rank {rank}"))
            body.append(_box(_LEFT, top, each.end_s * scale, _ROW, palette.IDLE.light))
            for made, thin in _row(each.spans, rank, resolution_s):
                merged |= any(not box.word for box in made)
                used.update(kind for box in made for kind, _ in box.shares)
                body += _lane(made, top + (_ROW if thin else 0), thin, scale)
            top += _ROW + _THIN + _GAP
        top += 12
    entries, top = _legend(top, used)
    body += entries
    notes = [f"full width: {format_time(length_s)}", "grey: idle"]
    if merged:
        width_s = format_time(resolution_s)
        notes.append(f"ops shorter than {width_s} are drawn together, each colour by its share")
    body.append(_text(_LEFT, top + 12, "; ".join(notes), fill=palette.MUTED.light))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + 24:.0f}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" '
        f'fill="{palette.BACKGROUND.light}"/>{"".join(body)}</svg>\n'
    )


def chosen_ranks(ranks: Iterable[int], most: int) -> list[int]:
    """All ranks, or the first, the last and evenly spaced ones between."""
    known = sorted(set(ranks))
    if len(known) <= most:
        return known
    step = (len(known) - 1) / (most - 1)
    return [known[round(number * step)] for number in range(most)]


def _shown(panel: Panel) -> _Shown:
    known = {span.rank for span in panel.timeline.spans}
    ranks = chosen_ranks(known, ROWS)
    kept = set(ranks)
    spans = [span for span in panel.timeline.spans if span.rank in kept]
    origin_s = min(span.start_s for span in spans)
    moved = [
        Span(s.step, s.rank, s.lane, s.word, s.start_s - origin_s, s.end_s - origin_s)
        for s in spans
    ]
    return _Shown(panel, ranks, len(known) - len(ranks), moved)


def _row(spans: Iterable[Span], rank: int, resolution_s: float) -> Iterator[tuple[list[Box], bool]]:
    """A rank's lanes as boxes, and whether each is drawn thin. Of a message the receiving end: a
    measured send ends as soon as the network has taken its bytes."""
    lanes: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.rank == rank and not span.lane.startswith("send"):
            lanes[span.lane].append(span)
    for lane, lane_spans in lanes.items():
        yield boxes(lane_spans, resolution_s), lane != "compute"


def _lane(made: Iterable[Box], top: float, thin: bool, scale: float) -> Iterator[str]:
    """Ops as boxes with their names; columns as strokes, one path for each colour and width."""
    height = _THIN if thin else _ROW
    columns: dict[tuple[OpClass, str], list[str]] = defaultdict(list)
    for box in made:
        left, width = _LEFT + box.start_s * scale, max(box.length_s * scale, 0.5)
        if box.word and width >= _SEAM:
            yield _op(box, left, top, width, height, thin)
            continue
        bottom = top + height
        for kind, share in box.shares:
            tall = round(share * height, 1)
            bottom -= tall
            stroke = f"M{left + width / 2:.1f} {bottom:.1f}v{tall:g}"
            columns[kind, f"{width:.2f}"].append(stroke)
    for (kind, wide), path in columns.items():
        colour = kind.colour.light
        yield f'<path stroke="{colour}" stroke-width="{wide}" d="{"".join(path)}"/>'


def _op(box: Box, left: float, top: float, width: float, height: float, thin: bool) -> str:
    kind = box.shares[0][0]
    name = escape(f"{box.word} {format_time(box.length_s)}")
    drawn = _box(left, top, width - 0.5, height, kind.colour.light, name)
    micro_batch = micro_batch_of(box.word)
    if not thin and micro_batch and width > 4 + 6 * len(micro_batch):
        fill = ink_on(kind.colour.light)
        drawn += _text(left + width / 2, top + 15, micro_batch, fill=fill, anchor="middle")
    return drawn


def _legend(top: float, used: set[OpClass]) -> tuple[list[str], float]:
    """The colours that are used with their names, in as many lines as they need; and where the
    last line ends."""
    drawn: list[str] = []
    left = float(_LEFT)
    for kind in _LEGEND:
        if kind not in used:
            continue
        width = 17 + _LETTER * len(kind.name)
        if left + width > _WIDTH:
            left, top = float(_LEFT), top + 18
        drawn.append(_box(left, top, 12, 12, kind.colour.light, kind.name))
        drawn.append(_text(left + 17, top + 10, kind.name))
        left += width + 16
    return drawn, top + 18


def _box(left: float, top: float, width: float, height: float, fill: str, title: str = "") -> str:
    said = f"<title>{title}</title></rect>" if title else "</rect>"
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height}" fill="{fill}">'
        + said
    )


def _text(
    left: float,
    top: float,
    text: str,
    *,
    fill: str = palette.INK.light,
    anchor: str = "start",
    weight: str = "",
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    return (
        f'<text x="{left:.1f}" y="{top:.1f}" fill="{fill}" text-anchor="{anchor}"{bold}>'
        f"{escape(text)}</text>"
    )
