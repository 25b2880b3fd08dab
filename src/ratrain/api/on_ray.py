"""A run that Ray Train starts."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ratrain.api.jobs import Job, job_of, require_file
from ratrain.api.runs import Run
from ratrain.api.training import prepared_run
from ratrain.runtime.run.launchable import launchable_run
from ratrain.runtime.run.on_ray_train import trainer_of
from ratrain.runtime.run_folder import RunFolder


def ray_trainer(
    job: Job | Run | str | Path,
    *,
    run: str | Path | None = None,
    threads: int = 1,
    run_config: object | None = None,
    python: str = sys.executable,
) -> Any:
    """A Ray Train `DataParallelTrainer` whose workers start the job's ranks;
    `.fit()` trains. Called again for a run that was begun it goes on from its checkpoint.

    job: a job with [data], its file; or a run, or its folder, that was prepared.
    run: the folder to make, which all of Ray's nodes see. Left out: runs/JOB-SCHEDULE, here.
    threads: processors and PyTorch threads of a rank.
    run_config: a `ray.train.RunConfig`: its name, storage and failure policy.
    python: the nodes' own that has RATrain.

    Raises a `SpecError` where Ray is missing, or the cluster has several kinds of device.
    """
    if isinstance(job, Run):
        folder = job.folder
    elif not isinstance(job, Job) and Path(job).is_dir():
        folder = Path(job)
    else:
        known = job_of(job)
        require_file(known)
        with ExitStack() as owning:
            folder = prepared_run(known, run, threads, owning).path
    return trainer_of(launchable_run(RunFolder(folder.resolve()), python), run_config)
