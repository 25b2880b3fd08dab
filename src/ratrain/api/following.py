"""The weights of a run while it trains."""

from __future__ import annotations

from pathlib import Path

from ratrain.api.runs import Run
from ratrain.extras import require_package
from ratrain.runtime.run.following import Followed

require_package("torch")  # before a run is followed

__all__ = ["Followed", "follow"]


def follow(run: Run | str | Path, *, nics: str = "loopback") -> Followed:
    """Follows a run whose job says `[train] publish_every = N`, on this machine or another one that
    sees its folder. The run goes on beside it.

        with ratrain.follow("runs/it") as weights:
            while True:
                step = weights.wait()                # the next version, whole and of one step
                model.load_state_dict(dict(weights.tensors(torch.bfloat16)))

    run: its folder. nics: where weights come in: "loopback", "all", or interfaces or addresses with
    commas between them.
    """
    return Followed(run.folder if isinstance(run, Run) else Path(run), nics)
