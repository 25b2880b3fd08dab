"""Optimizers, one file each, and what each declares."""

from ratrain.describe.optimizers import adafactor, adamw, adamw8bit, lion, muon, sgd
from ratrain.describe.optimizers.adamw import AdamKeys
from ratrain.describe.optimizers.optimizer import (
    OPTIMIZERS,
    USUAL_OPTIMIZER,
    Held,
    Matrix,
    Optimizer,
    Plain,
    State,
    Step,
    declare_optimizer,
    matrices_of_stack,
    optimizer_named,
)

BUILT_IN = (adamw, adamw8bit, sgd, lion, adafactor, muon)
"""Files that declare one each."""

__all__ = [
    "BUILT_IN",
    "OPTIMIZERS",
    "USUAL_OPTIMIZER",
    "AdamKeys",
    "Held",
    "Matrix",
    "Optimizer",
    "Plain",
    "State",
    "Step",
    "declare_optimizer",
    "matrices_of_stack",
    "optimizer_named",
]
