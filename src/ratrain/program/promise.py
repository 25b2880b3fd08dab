"""What the loss of one rank costs a run whose other ranks go on."""

from __future__ import annotations

from ratrain.program.setup import Setup


def keeps_every_step(setup: Setup) -> bool:
    """Whether the others hold a whole version of all states at every moment, none older than the
    last step that was told of."""
    names = set(setup.holders) - setup.frozen
    return setup.mirrored and all(setup.is_shared(name) for name in names)


def loss_words(setup: Setup) -> str:
    if keeps_every_step(setup):
        return "no step is lost with one rank"
    return "with one rank at most the steps since the latest checkpoint are lost"
