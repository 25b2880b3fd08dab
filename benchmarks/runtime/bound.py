"""What no order of the same work can beat: the busiest stage, or the busiest link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cases import Case
from outcomes import Outcome


@dataclass(frozen=True)
class Bound:
    """max(busiest stage's compute, busiest link's bytes / its rate), for our methods.

    Neither the pipeline's filling and draining nor what must wait for what is in it, so no
    schedule reaches all of it.
    """

    compute_s: float
    link_s: float

    @property
    def time_s(self) -> float:
        return max(self.compute_s, self.link_s)

    @property
    def words(self) -> str:
        return (
            f"bound {self.time_s:.2f} s: compute {self.compute_s:.2f} s, link {self.link_s:.2f} s"
        )


def bound_of(case: Case, ours: Sequence[Outcome]) -> Bound:
    """Of the first of our methods that ended: its bytes, and its processor time.

    Sleeping units' times are known; of real ones it is the busiest rank's processor time over
    its share of a processor.
    """
    ran = next((outcome for outcome in ours if outcome.ended), None)
    if ran is None:
        return Bound(float("nan"), float("nan"))
    compute_s = ran.cpu_s / min(1.0, case.cpus)
    if case.emulation:
        compute_s = case.micro_batches * max(
            _stage_s(case, stage) for stage in range(case.pipeline)
        )
    return Bound(compute_s, ran.sent_bytes / case.rate_bytes_per_s)


def _stage_s(case: Case, stage: int) -> float:
    """Sleeps of one micro-batch on a stage; the last stage keeps its activations."""
    assert case.emulation is not None
    last = stage == case.pipeline - 1
    passes = 4 if case.recovery and not last else 3
    layers = case.layers_of_stages[stage] * case.emulation.layer_s * passes
    return layers + (3 * case.emulation.head_s if last else 0.0)
