"""A kernel's picture: cores as rows, vector units and DMA channels in their colours."""

from __future__ import annotations

from ratrain.kernels import KERNELS, MACHINES, timeline_of, written
from ratrain.timeline.palette import COPY, PRODUCT, VECTOR
from ratrain.timeline.picture import Panel, svg


def test_a_picture_shows_every_core_and_names_what_it_does() -> None:
    kernel = KERNELS["attention"]
    machine = MACHINES["mt-3000"].with_cores(2)
    timeline = timeline_of(written(kernel.writing(kernel.small), machine, None))
    drawn = svg([Panel("attention", timeline)])
    assert {span.rank for span in timeline.spans} == {0, 1}
    for shown in (PRODUCT, VECTOR, COPY):
        assert f">{shown.name}</text>" in drawn
    assert "optimizer" not in drawn
