"""A run whose ranks Ray Train's workers start, for those who have its controller, failure policies
and dashboard already.

A rank is a child of a worker, not the worker: what it allocates is counted and limited by a library
that must be loaded before Python. It ends when its worker does.
"""

from __future__ import annotations

import os
import subprocess
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from ratrain.engines.groups import Launchable
from ratrain.engines.ray import ray_module
from ratrain.engines.statuses import START_AGAIN
from ratrain.errors import SpecError
from ratrain.runtime.run_folder import RunFolder

_GRACE_S = 60.0


def trainer_of(run: Launchable, run_config: object | None) -> Any:
    """A `DataParallelTrainer` with a worker for each rank."""
    ray_module()
    if run.kinds > 1:
        raise SpecError(
            "Ray Train gives all workers the same resources, and the plan has several kinds of "
            "device",
            place="ratrain.ray_trainer",
            fix="use `ratrain launch ray`, whose placement group has a bundle for each host",
        )
    try:
        train: Any = import_module("ray.train")
        parallel: Any = import_module("ray.train.v2.api.data_parallel_trainer")
    except ImportError as error:
        raise SpecError(
            f"Ray Train cannot be imported: {error}",
            place="ratrain.ray_trainer",
            fix="pip install 'ray[train]' here and on Ray's nodes",
        ) from error
    return parallel.DataParallelTrainer(
        run_rank,
        train_loop_config={"run": run.run, "command": run.command},
        backend_config=train.BackendConfig(),
        scaling_config=train.ScalingConfig(
            num_workers=run.ranks,
            use_gpu=run.gpus,
            resources_per_worker={"CPU": run.threads, **({"GPU": 1} if run.gpus else {})},
        ),
        run_config=run_config,
    )


def run_rank(config: dict[str, Any]) -> None:
    """What a worker does: a rank's whole life. What it reports is the run's last step; a rank that
    ended otherwise is an error, after which Ray Train's failure policy starts all of them again."""
    ray, train = ray_module(), import_module("ray.train")
    context: Any = train.get_context()
    address = ray.util.get_node_ip_address()
    told = [address, str(time.time_ns())]
    first, attempt = import_module("ray.train.collective").broadcast_from_rank_zero(told)
    rank = context.get_world_rank()
    variables = {
        "RATRAIN_RAY": str(ray.get_runtime_context().get_job_id()),
        "RATRAIN_RAY_ATTEMPT": attempt,
        "RATRAIN_RAY_NODE": ray.get_runtime_context().get_node_id(),
        "RATRAIN_RAY_FIRST": first,
        "RATRAIN_ADDRESS": address,
        "RANK": str(rank),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "PYTHONUNBUFFERED": "1",
    }
    child = subprocess.Popen(
        config["command"], env={**os.environ, **variables}, stdin=subprocess.DEVNULL
    )
    try:
        status = child.wait()
    except BaseException:
        child.terminate()  # it saves behind its step
        child.wait(_GRACE_S)
        raise
    finally:
        child.kill()
    if status:
        again = "; it can go on from its checkpoint" if status in START_AGAIN else ""
        raise RuntimeError(f"rank {rank} ended with {status}{again}")
    rows = RunFolder(Path(config["run"])).read_metrics()
    train.report({"step": rows[-1]["step"] + 1, "loss": rows[-1]["loss"]} if rows else {})
