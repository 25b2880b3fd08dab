"""An epoch's ops beside their prediction."""

from __future__ import annotations

from ratrain.graph.figures import op_times
from ratrain.timeline.timeline import Span, Timeline


def _spans(*ops: tuple[str, float]) -> tuple[Span, ...]:
    return tuple(Span(0, 0, "compute", word, at, at + took) for at, (word, took) in enumerate(ops))


def test_ops_that_come_again_in_an_epoch_are_all_counted_the_longest_kind_first() -> None:
    words = "read activation.1.3", "add 2.7 <- 3", "read activation.1.3"
    predicted = Timeline("simulate", _spans(*((word, 0.5) for word in words)))
    measured = Timeline("runtime", _spans((words[0], 0.25), (words[1], 1.0), (words[2], 0.5)))
    rows = op_times(predicted, measured)
    assert [(row.kind, row.ops, row.predicted_s, row.measured_s) for row in rows] == [
        ("add", 1, 0.5, 1.0),
        ("read", 2, 1.0, 0.75),
    ]
    assert [round(row.error, 3) for row in rows] == [0.5, 0.333]
