"""Whether our DiLoCo takes the outer steps of torchft 0.2's, bit by bit: `python
benchmarks/sites/diloco_steps.py [--periods 6]`, with torchft installed as `torchft_peer.py` says.

Two sites, processes of this machine, train the same small LLaMA twice, each on its own sequences: a
model by `torchft.local_sgd.DiLoCo` (no delay), and its twin by torch's AdamW and our `OuterStates`,
of what both sites learnt in a period, at the same steps: behind the last inner step of each.
Printed is, after each period, how many weights of the two differ, and by how many units in the last
place at most. Each goes on from its own.

What this leaves out is when a run of ours meets: as a step begins, so that the step's gradient is
that of the weights before the outer step. There is no key for the other order.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from sites import MODELS
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ratrain.describe.huggingface import load_config
from ratrain.runtime.step.outer import OuterStates

PERIOD, RATE, MOMENTUM = 8, 0.7, 0.9  # as `torchft_peer.py` has them
MODEL = MODELS["0.4M"]


class Twin:
    """A model, its inner optimizer, and our outer states of each parameter."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self._inner = model, torch.optim.AdamW(model.parameters(), lr=1e-3)
        weights = [parameter.detach().flatten() for parameter in model.parameters()]
        self._outer = [OuterStates(each.clone(), torch.zeros_like(each)) for each in weights]

    def learn(self, tokens: Tensor) -> None:
        learn(self.model, self._inner, tokens)

    @torch.no_grad()
    def meet(self) -> None:
        for parameter, states in zip(self.model.parameters(), self._outer, strict=True):
            learnt = states.learnt(parameter.flatten())
            dist.all_reduce(learnt)
            learnt /= dist.get_world_size()
            states.step(learnt, RATE, MOMENTUM)
            parameter.copy_(learnt.view(parameter.shape))


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    """An inner step."""
    output = model(tokens[:, :-1])
    cross_entropy(output.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def apart(one: nn.Module, other: nn.Module) -> tuple[int, int]:
    """How many weights differ, and by how many units in the last place at most."""
    differing, most = 0, 0
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        steps = (_ordered(a) - _ordered(b)).abs()
        differing += int((steps > 0).sum())
        most = max(most, int(steps.max()))
    return differing, most


def _ordered(weights: Tensor) -> Tensor:
    """Numbers as integers in their order, neighbours one apart."""
    bits = weights.detach().view(torch.int32).long()
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def train(config: Path, periods: int) -> list[tuple[int, int]]:
    """One site; gives what is apart after each period."""
    from torchft_peer import Meeting, synchronised, units_of  # needs torchft

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    spec, site = load_config(config), dist.get_rank()
    torch.manual_seed(0)
    units = units_of(spec, MODEL.length)
    torch.manual_seed(0)
    theirs, ours = nn.Sequential(*units), Twin(nn.Sequential(*units_of(spec, MODEL.length)))
    assert apart(theirs, ours.model) == (0, 0)
    inner = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    dice, found = torch.Generator().manual_seed(site), list[tuple[int, int]]()
    meeting = Meeting(site, theirs)
    with synchronised("1-0", meeting.manager, units, inner, PERIOD):
        for step in range(periods * PERIOD):
            shape = (MODEL.batch, MODEL.length + 1)
            tokens = torch.randint(spec.vocab, shape, generator=dice)
            learn(theirs, inner, tokens)
            ours.learn(tokens)
            if step % PERIOD == PERIOD - 1:
                ours.meet()
                found.append(apart(theirs, ours.model))
    dist.barrier()
    meeting.manager.shutdown(wait=False)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--periods", type=int, default=6)
    periods = parser.parse_args().periods
    with tempfile.TemporaryDirectory(prefix="diloco-") as temporary:
        config = Path(temporary) / "config.json"
        config.write_text(json.dumps(MODEL.config))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        command = [sys.executable, __file__, "--site", str(config), str(periods)]
        sites = [
            subprocess.Popen(command, env={**os.environ, **where, "RANK": str(rank)})
            for rank in range(2)
        ]
        failed = [site.wait() for site in sites]
        if any(failed):
            raise SystemExit("a site has failed")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--site"]:
        rows = train(Path(sys.argv[2]), int(sys.argv[3]))
        if dist.get_rank() == 0:
            for number, (differing, ulps) in enumerate(rows, start=1):
                print(f"period {number}: {differing} weights differ, by {ulps} ulps at most")
        sys.stdout.flush()
        os._exit(0)  # torchft's threads of heartbeats wait for a lighthouse that has gone
    main()
