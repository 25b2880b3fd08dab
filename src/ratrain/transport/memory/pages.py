"""The offsets of numbered pages, checked against the memory they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ratrain.errors import BadTarget, SpecError
from ratrain.transport.wire import frames

Pages = Sequence[int] | npt.NDArray[Any]
Offsets = npt.NDArray[np.uint64]
Side = tuple[Pages, int, int]
"""Page numbers, the stride they are multiplied by, and the bytes available."""


def page_offsets(
    source: Side, target: Side, page_bytes: int, place: str
) -> tuple[Offsets, Offsets]:
    """Offsets of the source's and the target's pages; an error when a page is out of bounds
    (`place`: the target's peer)."""
    from_b, to_b = (np.asarray(p, np.uint64) * np.uint64(n) for p, n, _ in (source, target))
    if from_b.shape != to_b.shape or from_b.ndim != 1:
        raise SpecError(f"{from_b.size} source pages for {to_b.size} destination pages")
    if not 0 < page_bytes <= frames.MAX_PIECE_BYTES:
        raise SpecError(f"a page of {page_bytes} bytes", fix="use pages of 1 byte to 4 MiB")
    if from_b.size:
        if int(from_b.max()) + page_bytes > source[2]:
            raise BadTarget(f"a source page leaves its region of {source[2]} bytes")
        if int(to_b.max()) + page_bytes > target[2]:
            raise BadTarget(f"a page leaves its target of {target[2]} bytes", place=place)
    return from_b, to_b
