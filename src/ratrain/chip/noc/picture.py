"""Pictures of a run: link load as SVG and in the terminal, and a collective step by step in HTML.

All files are self-contained; north is up, as the mesh counts its rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from string import Template

import numpy as np
from numpy.typing import NDArray

from ratrain.chip.noc.mesh import Run
from ratrain.chip.noc.spec import MeshSpec
from ratrain.timeline import palette

Loads = NDArray[np.float64]
"""[row, column, port N E S W L]: flits per cycle."""

_CELL, _NODE, _EDGE = 64, 30, 30
_SHADES = " .:-=+*#%@"


def link_loads(run: Run, plane: int | None = None) -> Loads:
    """Flits per cycle on every link over the whole run, of one plane or of all together."""
    flits = run.link_flits.sum(axis=0) if plane is None else run.link_flits[plane]
    return flits / max(1, run.cycles)


def _colour(share: float) -> str:
    """Pale yellow to dark red; one hue order that also reads in grey."""
    stops = [(255, 250, 220), (253, 200, 100), (236, 100, 40), (140, 10, 30)]
    at = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    low = min(int(at), len(stops) - 2)
    part = at - low
    mixed = (round(a + (b - a) * part) for a, b in zip(stops[low], stops[low + 1], strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def _corner(mesh: MeshSpec, column: int, row: int) -> tuple[int, int]:
    """Upper left of a node's square."""
    return _EDGE + column * _CELL, _EDGE + (mesh.rows - 1 - row) * _CELL


def _link_box(mesh: MeshSpec, column: int, row: int, port: int) -> tuple[int, int, int, int]:
    """x, y, width, height of a link's bar; the two directions lie side by side."""
    x, y = _corner(mesh, column, row)
    gap, thick = _CELL - _NODE, 9
    middle = _NODE // 2
    return (
        (x + middle - thick - 1, y - gap, thick, gap),
        (x + _NODE, y + middle - thick - 1, gap, thick),
        (x + middle + 1, y + _NODE, thick, gap),
        (x - gap, y + middle + 1, gap, thick),
    )[port]


def _has_link(mesh: MeshSpec, column: int, row: int, port: int) -> bool:
    return (row < mesh.rows - 1, column < mesh.columns - 1, row > 0, column > 0)[port]


def heat_svg(mesh: MeshSpec, loads: Loads, title: str) -> str:
    """The mesh with every link coloured by its load; the square shows the ejection port's."""
    width = 2 * _EDGE + mesh.columns * _CELL - (_CELL - _NODE)
    height = 2 * _EDGE + mesh.rows * _CELL - (_CELL - _NODE) + 50
    width = max(width, 360)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_EDGE}" y="18" font-size="13">{escape(title)}</text>',
    ]
    for row in range(mesh.rows):
        for column in range(mesh.columns):
            for port in range(4):
                if _has_link(mesh, column, row, port):
                    x, y, w, h = _link_box(mesh, column, row, port)
                    load = float(loads[row, column, port])
                    parts.append(
                        f'<rect x="{x}" y="{y}" width="{w}" height="{h}" '
                        f'fill="{_colour(load)}" stroke="#999" stroke-width="0.5">'
                        f"<title>{_port_name(mesh, column, row, port)}: {load:.3f} flits/cycle"
                        "</title></rect>"
                    )
            x, y = _corner(mesh, column, row)
            eject = float(loads[row, column, 4])
            ink = "white" if eject > 0.6 else "black"
            parts.append(
                f'<rect x="{x}" y="{y}" width="{_NODE}" height="{_NODE}" rx="3" '
                f'fill="{_colour(eject)}" stroke="#333"><title>ejection {eject:.3f} flits/cycle'
                f'</title></rect><text x="{x + _NODE // 2}" y="{y + _NODE // 2 + 4}" '
                f'text-anchor="middle" fill="{ink}">{column + mesh.origin_x},{row}</text>'
            )
    parts.append(_legend(height - 28))
    return "\n".join([*parts, "</svg>\n"])


def _legend(y: int) -> str:
    steps = "".join(
        f'<rect x="{_EDGE + 12 * i}" y="{y}" width="12" height="10" fill="{_colour(i / 15)}"/>'
        for i in range(16)
    )
    return (
        f'{steps}<text x="{_EDGE}" y="{y + 21}">0</text>'
        f'<text x="{_EDGE + 192}" y="{y + 21}" text-anchor="end">1</text>'
        f'<text x="{_EDGE + 200}" y="{y + 9}">flits per cycle</text>'
    )


def _port_name(mesh: MeshSpec, column: int, row: int, port: int) -> str:
    return f"({column + mesh.origin_x},{row}) {'NESW'[port]}"


def heat_text(mesh: MeshSpec, loads: Loads) -> str:
    """The mesh in the terminal: percent of the busier direction on every link.

    Beyond 12 columns one character per router, the darker the busier its busiest link; beyond 76
    columns groups of routers share one.
    """
    if mesh.columns > 12:
        return _shade_text(mesh, loads)
    lines: list[str] = []
    for row in reversed(range(mesh.rows)):
        line = "o"
        for column in range(mesh.columns - 1):
            busier = max(loads[row, column, 1], loads[row, column + 1, 3])
            line += f"-{round(100 * busier):>2}--o" if busier < 0.995 else "-100-o"
        lines.append(line)
        if row:
            busy = np.maximum(loads[row, :, 2], loads[row - 1, :, 0])
            lines.append("".join(f"{round(100 * float(b)):<6}" for b in busy).rstrip())
    return "\n".join(lines)


def _shade_text(mesh: MeshSpec, loads: Loads) -> str:
    busiest = loads[:, :, :4].max(axis=2)
    step = -(-mesh.columns // 76)
    lines: list[str] = []
    for row in reversed(range(0, mesh.rows, step)):
        cells = [
            float(busiest[row : row + step, column : column + step].max())
            for column in range(0, mesh.columns, step)
        ]
        lines.append("".join(_SHADES[min(int(10 * c), 9)] for c in cells))
    lines.append(f"'{_SHADES}' = 0 to 100 % of a link, the busiest of each router")
    return "\n".join(lines)


def steps_html(run: Run, title: str, *, max_cycles: int = 4000) -> str:
    """A page that plays a traced run: every link lights up in the colour of the message on it."""
    mesh = run.mesh
    rows = run.trace[run.trace[:, 0] < max_cycles]
    frames: dict[int, list[list[int]]] = {}
    for cycle, plane, node, port, task, _ in rows.tolist():
        frames.setdefault(cycle, []).append([plane, node * 5 + port, task])
    boxes: list[str] = []
    for row in range(mesh.rows):
        for column in range(mesh.columns):
            node = row * mesh.columns + column
            x, y = _corner(mesh, column, row)
            boxes += [
                '<rect id="l{}" x="{}" y="{}" width="{}" height="{}"/>'.format(
                    node * 5 + port, *_link_box(mesh, column, row, port)
                )
                for port in range(4)
                if _has_link(mesh, column, row, port)
            ]
            boxes.append(
                f'<rect id="l{node * 5 + 4}" class="node" x="{x}" y="{y}" width="{_NODE}" '
                f'height="{_NODE}" rx="3"/><text x="{x + _NODE // 2}" y="{y + _NODE // 2 + 4}">'
                f"{column + mesh.origin_x},{row}</text>"
            )
    width = 2 * _EDGE + mesh.columns * _CELL - (_CELL - _NODE)
    height = 2 * _EDGE + mesh.rows * _CELL - (_CELL - _NODE)
    last = max(frames, default=0)
    return _PAGE.substitute(
        title=escape(title),
        width=width,
        height=height,
        boxes="\n".join(boxes),
        planes=json.dumps([p.name for p in mesh.planes]),
        frames=json.dumps(frames, separators=(",", ":")),
        last=last,
        cut=f" (first {max_cycles} cycles)" if run.cycles > max_cycles else "",
    )


_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<style>
body { font: 14px sans-serif; margin: 1em 2em; color: #222; background: #fff; max-width: 60em }
svg rect { fill: #f2f2f2; stroke: #bbb; stroke-width: .5 }
svg rect.node { fill: #fff; stroke: #333; stroke-width: 1 }
svg text { font: 10px sans-serif; text-anchor: middle; pointer-events: none }
input[type=range] { width: 24em; vertical-align: middle }
td { padding: 0 .8em 0 0 } i { display: inline-block; width: 1em; height: 1em }
</style></head><body>
<h1 style="font-size:18px">$title$cut</h1>
<p><button id="play">play</button> <button id="back">&lt;</button>
<button id="next">&gt;</button>
<input type="range" id="at" min="0" max="$last" value="0"> cycle <b id="now">0</b> of $last</p>
<svg width="$width" height="$height" viewBox="0 0 $width $height">$boxes</svg>
<p>Bars between routers are links, one per direction; a bar is filled in the cycle in which a flit
leaves on it. A filled router ejects a flit to its own endpoint.</p>
<table id="legend"></table>
<script>
const frames = $frames, planes = $planes, last = $last;
const at = document.getElementById("at"), now = document.getElementById("now");
let lit = [], timer = null;
const hue = (plane, task) =>
  `hsl($${(plane * 97 + task * 47) % 360} 75% $${62 + 8 * (plane % 2)}%)`;
function show(cycle) {
  for (const box of lit) box.style.fill = "";
  lit = [];
  const counts = {};
  for (const [plane, link, task] of frames[cycle] || []) {
    const box = document.getElementById("l" + link);
    box.style.fill = hue(plane, task);
    lit.push(box);
    counts[plane] = (counts[plane] || 0) + 1;
  }
  now.textContent = cycle;
  at.value = cycle;
  document.getElementById("legend").innerHTML = planes.map((name, i) =>
    `<tr><td>$${name}</td><td>$${counts[i] || 0} flits in this cycle</td></tr>`).join("");
}
at.oninput = () => show(+at.value);
document.getElementById("back").onclick = () => show(Math.max(0, +at.value - 1));
document.getElementById("next").onclick = () => show(Math.min(last, +at.value + 1));
document.getElementById("play").onclick = event => {
  if (timer) { clearInterval(timer); timer = null; event.target.textContent = "play"; return; }
  event.target.textContent = "stop";
  timer = setInterval(() => show(+at.value >= last ? 0 : +at.value + 1), 120);
};
show(0);
</script></body></html>
""")


def curve_svg(series: dict[str, list[tuple[float, float]]], title: str) -> str:
    """Latency over offered load, one line for each series, on a logarithmic axis: near saturation
    a latency is a hundred times that of an idle mesh. Every point carries its number."""
    points = [point for line in series.values() for point in line]
    axis = _LogAxis.of([cycles for _, cycles in points], low=_BASE, high=_TOP)
    right = max((load for load, _ in points), default=1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="{palette.BACKGROUND.light}"/>',
        f'<text x="{_LEFT}" y="20" font-size="13">{escape(title)}</text>',
        *_grid(axis, right),
    ]
    for number, (name, points_of) in enumerate(series.items()):
        line = [point for point in points_of if math.isfinite(point[1])]
        colour = palette.SERIES[number % len(palette.SERIES)].light
        parts += _line(line, axis, right, colour)
        parts.append(
            f'<text x="{_LEFT + 10}" y="{54 + 14 * number}" fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


_WIDTH, _HEIGHT, _LEFT, _BASE, _TOP = 560, 340, 56, 296, 40


@dataclass(frozen=True)
class _LogAxis:
    """A logarithmic axis from `first` to `last`, drawn from pixel `low` up to pixel `high`."""

    first: float
    last: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float], *, low: float, high: float) -> _LogAxis:
        positive = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
        return cls(min(positive) / 1.25, max(positive) * 1.25, low, high)

    def place(self, value: float) -> float:
        share = math.log(max(value, self.first) / self.first) / math.log(self.last / self.first)
        return self.low - (self.low - self.high) * min(share, 1.0)

    def ticks(self) -> list[float]:
        """1, 2 and 5 of each power of ten; powers alone where those are many."""
        decades = range(math.floor(math.log10(self.first)), math.ceil(math.log10(self.last)) + 1)
        steps = (1, 2, 5) if len(decades) <= 4 else (1,)
        candidates = [step * 10.0**decade for decade in decades for step in steps]
        return [tick for tick in candidates if self.first <= tick <= self.last]


def _grid(axis: _LogAxis, right: float) -> Iterator[str]:
    for tick in axis.ticks():
        y, line = axis.place(tick), palette.LINE.light
        yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - 20}" stroke="{line}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>'
    for share in (0.25, 0.5, 0.75, 1.0):
        x = _across(right * share, right)
        yield (
            f'<text x="{x:.1f}" y="{_BASE + 14}" text-anchor="middle">{right * share:.2g}</text>'
        )
    yield (
        f'<path d="M{_LEFT} {_TOP}V{_BASE}H{_WIDTH - 20}" fill="none" '
        f'stroke="{palette.INK.light}"/>'
    )
    yield (
        f'<text x="{_WIDTH - 20}" y="{_BASE + 30}" text-anchor="end">'
        "offered flits per node and cycle</text>"
    )
    yield '<text x="8" y="34">cycles (logarithmic)</text>'


def _line(
    line: list[tuple[float, float]], axis: _LogAxis, right: float, colour: str
) -> Iterator[str]:
    places = [(_across(load, right), axis.place(cycles)) for load, cycles in line]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for (x, y), (load, cycles) in zip(places, line, strict=True):
        tooltip = f"{load:g} flits per node and cycle: {cycles:,.1f} cycles"
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}">'
            f"<title>{tooltip}</title></circle>"
        )
        yield (
            f'<text x="{x - 5:.1f}" y="{y - 6:.1f}" text-anchor="end" '
            f'fill="{palette.MUTED.light}">{_short(cycles)}</text>'
        )


def _across(load: float, right: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 20) * load / right


def _short(cycles: float) -> str:
    return f"{cycles:,.0f}" if cycles >= 99.95 else f"{cycles:.1f}"
