"""One rank of PyTorch's own runtime: runs schedules from files, one after the other, over gloo.

python pytorch_rank.py RANK RANKS STORE SCHEDULE.csv...   prints the gradients of each
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

MICRO_BATCHES = 4


def gradients(path: str, rank: int, ranks: int, torch: Any) -> dict[int, list[float]]:
    """The gradients of this rank's stages, of four linear layers in a V."""
    pipelining = importlib.import_module("torch.distributed.pipelining")
    schedules = importlib.import_module("torch.distributed.pipelining.schedules")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4) for _ in range(2 * ranks)]
    own = [rank, 2 * ranks - 1 - rank]
    stages = [pipelining.PipelineStage(layers[n], n, 2 * ranks, torch.device("cpu")) for n in own]
    schedule = schedules._PipelineScheduleRuntime(
        stages, MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss
    )
    schedule._load_csv(path, "compute_comms")
    for stage in stages:
        stage.stage_index_to_group_rank = schedule.stage_index_to_group_rank
    inputs, targets = torch.randn(2, 2 * MICRO_BATCHES, 4)
    if rank == 0:
        schedule.step(inputs, target=targets, losses=[])
    else:
        schedule.step()
    return {n: layers[n].weight.grad.flatten().tolist() for n in own}


def main() -> None:
    """Runs the schedules and prints."""
    rank, ranks = int(sys.argv[1]), int(sys.argv[2])
    torch = importlib.import_module("torch")
    distributed = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=ranks
    )
    print(json.dumps([gradients(path, rank, ranks, torch) for path in sys.argv[4:]]))
    distributed.barrier()


if __name__ == "__main__":
    main()
