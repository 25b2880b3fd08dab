"""The built-in kinds of op, each declared with its rule. Importing this declares them."""

from ratrain.program.kinds import (  # noqa: I001  # the order of declaration numbers the kinds
    compute,
    messages,
    gradients,
    gathers,
    tensor,
    barriers,
    checkpoint,
    tied,
    offload,
    averaging,
    mirror,
)

__all__ = [
    "averaging",
    "barriers",
    "checkpoint",
    "compute",
    "gathers",
    "gradients",
    "messages",
    "mirror",
    "offload",
    "tensor",
    "tied",
]
