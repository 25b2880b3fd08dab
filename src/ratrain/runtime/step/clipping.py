"""What a step's global norm decides: whether its updates are done, how its gradients are scaled,
and what a checkpoint must know of that."""

from __future__ import annotations

from torch import Tensor

from ratrain.cost.scratch import pieces_on
from ratrain.runtime.step.optimizer import LossScale


def is_finite(gradient: Tensor) -> bool:
    """Whether no element is infinite or NaN. Memory beside it: that of a chunk."""
    elements = pieces_on(gradient.device.type).update
    return all(bool(chunk.isfinite().all()) for chunk in gradient.split(elements))


class Clipping:
    """Settled once a step where the program has a ClipNorm; else every step updates. Units that
    decide by themselves (`[train] overflow = "unit"`) keep the loss scale of the beginning."""

    def __init__(
        self,
        clip_norm: float | None,
        loss_scale: LossScale | None,
        skipped_steps: int,
        *,
        by_unit: bool = False,
    ) -> None:
        self._clip_norm = clip_norm
        self.loss_scale = loss_scale
        self._skipped_steps = skipped_steps  # of all before, since step 0
        self.skips = False
        self.by_unit = by_unit
        self.factor = 1 / loss_scale.scale if by_unit and loss_scale else 1.0
        """What the step's gradients are multiplied by."""
        self._state_after: dict[int, dict[str, float]] = {}

    def begin(self, step: int) -> None:
        """The first step is this one: what is known now is what the one before it has left."""
        self._state_after[step - 1] = self._state_now(step - 1)

    @property
    def scale(self) -> float:
        """What losses are multiplied by."""
        return self.loss_scale.scale if self.loss_scale else 1.0

    def settle(self, step: int, squares: float) -> float:
        """Decides a step from its gradients' sum of squares, still scaled; returns their norm. A
        norm that is not finite skips the step, as torch's GradScaler does: it is no update."""
        scale = self.scale
        norm = squares**0.5 / scale
        finite = norm == norm and norm != float("inf")
        if self.loss_scale:
            self.loss_scale.settle(overflowed=not finite)
        self.skips = not finite
        self._skipped_steps += not finite
        self.factor = 1 / scale
        if self._clip_norm is not None and norm > self._clip_norm:
            self.factor *= self._clip_norm / norm
        # A save may come after the next step's norm.
        self._state_after[step] = self._state_now(step)
        self._state_after.pop(step - 2, None)
        return norm

    def updates_before(self, step: int) -> int:
        """How many updates were done before that of a step that is not skipped."""
        return step - self._skipped_steps

    def state_after(self, step: int) -> dict[str, float]:
        """What a checkpoint of a step holds beside the tensors; to be asked for behind one of the
        step's updates, at most a step later."""
        return self._state_after.get(step) or self._state_now(step)

    def _state_now(self, step: int) -> dict[str, float]:
        scale = self.loss_scale.as_state() if self.loss_scale else {}
        return {**scale, "updates": step + 1 - self._skipped_steps}
