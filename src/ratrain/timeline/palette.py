"""The colours of every picture of the project: one for each class of op, in light and in dark.

Whatever shows ops (the page of `ratrain report`, `--svg`, traces, grids in a terminal) takes its
colours from here. Waits and memory are drawn in the colour of the ops that cause them or that
make the states. tests/timeline/test_palette.py checks the contrast of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Colour:
    """A colour on a light and on a dark background, as "#rrggbb"."""

    light: str
    dark: str


@dataclass(frozen=True)
class OpClass:
    """Ops that share a colour. `key` names it in styles and data; `name` is for people."""

    key: str
    name: str
    colour: Colour
    terminal: str  # the nearest of a terminal's own colours
    trace: str  # the nearest of the trace format's reserved colour names


FORWARD = OpClass(
    "forward", "forward", Colour("#3a6fb0", "#6fa3e0"), "cyan", "thread_state_runnable"
)
BACKWARD = OpClass("backward", "backward", Colour("#287f54", "#55b985"), "green", "good")
WEIGHTS = OpClass(
    "weight", "weight gradient", Colour("#64912a", "#a3c957"), "magenta", "thread_state_running"
)
RECOVERY = OpClass(
    "recovery",
    "recovery (recomputation)",
    Colour("#c8730c", "#f0a24a"),
    "yellow",
    "thread_state_iowait",
)
MESSAGE = OpClass("message", "message between stages", Colour("#77808c", "#8b95a3"), "", "grey")
REDUCE = OpClass("reduce", "gradient reduction", Colour("#8459b3", "#ab86dc"), "", "")
GATHER = OpClass("gather", "weight gather", Colour("#b3508f", "#dd82bb"), "", "")
TENSOR = OpClass("tensor", "sum in a tensor group", Colour("#0f7d92", "#3fb3c6"), "", "")
UPDATE = OpClass("update", "optimizer", Colour("#97593a", "#c98a68"), "", "")
DISK = OpClass("disk", "checkpoint", Colour("#59616d", "#a0a9b6"), "", "")
SUMS = OpClass("sums", "sum over neighbours", Colour("#4a5fc1", "#8b9cf0"), "", "")
COPY = OpClass("copy", "copy between memory tiers", Colour("#7d6a14", "#cdb850"), "", "")

OP_CLASSES = (
    *(FORWARD, BACKWARD, WEIGHTS, RECOVERY),
    *(MESSAGE, REDUCE, GATHER, TENSOR, UPDATE, DISK, COPY, SUMS),
)

PRODUCT = OpClass("product", "product of tiles", FORWARD.colour, "cyan", "")
VECTOR = OpClass("vector", "other vector work", BACKWARD.colour, "green", "")
"""What a core of a chip computes: in pictures of kernels, where none of the others are."""

_OF_COMPUTE = {
    **{"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHTS, "R": RECOVERY},
    "sum": SUMS,  # of graphs
    **{"mm": PRODUCT, "mm_nt": PRODUCT},
    **dict.fromkeys(("map", "reduce", "fill", "turn", "add"), VECTOR),
}
_OF_LANE = {
    **{"reduce": REDUCE, "gather": GATHER, "tensor": TENSOR, "update": UPDATE, "disk": DISK},
    **dict.fromkeys(("offload", "fetch", "load", "store"), COPY),
}

BACKGROUND = Colour("#ffffff", "#161a20")
SURFACE = Colour("#f6f8fa", "#1d222a")
IDLE = Colour("#e9edf2", "#262d36")
INK = Colour("#1c2128", "#e6e9ee")
MUTED = Colour("#57606a", "#9aa4b1")
LINE = Colour("#d5dae1", "#333b46")
CRITICAL = Colour("#c2182b", "#ff6b78")
GOOD = Colour("#1d7a46", "#5ac48a")
BAD = Colour("#b3261e", "#ff8a80")

WAITING = Colour("#8a94a2", "#667284")
WAITS: dict[str, OpClass | Colour] = {
    "compute": FORWARD,
    "recovery": RECOVERY,
    "stages": WAITING,
    "tensor": TENSOR,
    "reduce": REDUCE,
    "gather": GATHER,
    "update": UPDATE,
    "fetch": COPY,
    "offload": Colour("#66700f", "#b7c24f"),
    "load": Colour("#8a5f1c", "#d9a85a"),
    "store": Colour("#6b6a3c", "#bdbb86"),
    "other": Colour("#4b5563", "#b3bdc9"),
}
"""Where the time of a compute lane goes, by the names of `runtime/run/reports/itemise.py`."""

SERIES = (FORWARD.colour, RECOVERY.colour, BACKWARD.colour, REDUCE.colour)
"""Curves that show no ops: loss, speed, latency."""


def class_of(lane: str, kind: str) -> OpClass:
    """The class of an op by its lane and kind. What is not known counts as state work."""
    if lane == "compute":
        return _OF_COMPUTE.get(kind, UPDATE)
    if lane.startswith(("send", "recv")):
        return MESSAGE
    if lane.startswith("dma"):
        return COPY
    return _OF_LANE.get(lane, UPDATE)


def colour_of(entry: OpClass | Colour) -> Colour:
    return entry.colour if isinstance(entry, OpClass) else entry


def luminance(colour: str) -> float:
    """Relative luminance of "#rrggbb" (WCAG 2.2)."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours (WCAG 2.2): 1 to 21."""
    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def ink_on(fill: str) -> str:
    """The text colour that reads best on a fill: white or nearly black."""
    return max(("#ffffff", "#10141a"), key=lambda ink: contrast(ink, fill))
