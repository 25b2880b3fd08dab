"""One rank of a peer on torch's own parts, over gloo, on our text, batches, initial weights and
learning rates: `python losses_peer.py METHOD JOB PERIOD EVERY OUT`, as RANK of WORLD_SIZE.

Rank 0 writes the loss on held-out text of the mean of all ranks' weights, every EVERY steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

import torch
import torch.distributed as dist
from plain_model import stage_of  # pyright: ignore[reportMissingImports]
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ratrain.corpus.prepare import prepare
from ratrain.corpus.samples import Samples
from ratrain.describe.job import JobSpec
from ratrain.models.shapes import unit_names
from ratrain.plan import load_job
from ratrain.runtime.step.optimizer import learning_rate


def samples_of(job: JobSpec, files: tuple[str, ...], *, shuffle: bool) -> Samples:
    assert job.data is not None and job.path is not None
    from dataclasses import replace

    data = replace(job.data, files=files, validation=())
    length = job.model.sequence_length
    store = prepare(data, job.path.parent, place="FILE", sequence_length=length).store
    return Samples(store, length, job.batch.sequences, job.train.seed, shuffle)


def loss_on(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


@contextmanager
def averaged(module: nn.Module) -> Iterator[None]:
    """The module with the mean of all ranks' weights, for a while."""
    own = [parameter.detach().clone() for parameter in module.parameters()]
    with torch.no_grad():
        for parameter in module.parameters():
            dist.all_reduce(parameter)
            parameter /= dist.get_world_size()
    yield
    with torch.no_grad():
        for parameter, values in zip(module.parameters(), own, strict=True):
            parameter.copy_(values)


def held_out_loss(module: nn.Module, held_out: Samples) -> float:
    """Of all whole sequences, four at once."""
    import numpy as np

    total, count = 0.0, held_out.count
    with torch.no_grad(), averaged(module):
        for first in range(0, count, 4):
            batch = held_out.at(np.arange(first, min(first + 4, count), dtype=np.int64))
            tokens, targets = torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)
            total += float(loss_on(module, tokens, targets)) * len(tokens)
    return total / count


def main(method: str, path: str, period: int, every: int) -> list[tuple[int, float]]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    job = load_job(path)
    assert job.data is not None
    spec, length, keys = job.model.spec, job.model.sequence_length, job.train.keys
    names = unit_names(spec)
    module = stage_of(
        spec, names, length, seed=job.train.seed, recovery=False, emulation=None
    )
    model = DistributedDataParallel(module)
    decaying = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": decaying, "weight_decay": job.train.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    betas = (keys.beta1, keys.beta2)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, betas=betas, eps=keys.epsilon)
    if method == "local-sgd":
        alone = [dist.new_group([other]) for other in range(size)]
        state = PostLocalSGDState(None, alone[rank], start_localSGD_iter=0)
        model.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(period=period, warmup_steps=0)
        optimizer = PostLocalSGDOptimizer(optimizer, averager)
    trained = samples_of(job, job.data.files, shuffle=True)
    held_out = samples_of(job, job.data.validation, shuffle=False)
    share = job.batch.sequences // size
    losses: list[tuple[int, float]] = []
    for step in range(job.train.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(job.train, step)
        batch = trained.batch(step, rank * share, share)
        loss_on(model, torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % every == 0:
            losses.append((step + 1, held_out_loss(module, held_out)))
    return losses


if __name__ == "__main__":
    name, job_path, of_period, at_every, out = sys.argv[1:]
    found = main(name, job_path, int(of_period), int(at_every))
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(found))
    dist.barrier()
