"""A run as a Slurm job: a batch script that starts its ranks, starts them again after a failure,
and is queued again where it was preempted or its time was up.

What the script relies on, seen with Slurm 22.05: preemption and the time limit reach the ranks and
not the script, whose step then ends with 75, and `scontrol requeue` keeps the job; a clean end
would count as its completion. `scancel` ends the script itself, so nothing is queued again. With
`--no-kill` the job stays when a node is lost: where the run can be planned for those that are left,
`ratrain launch hosts --slurm` starts it, which goes on without the node before Slurm misses it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ratrain.engines.groups import HostGroup, Launchable
from ratrain.engines.statuses import START_AGAIN, STOPPED

_SCRIPT = """\
#!/bin/bash
# {name}, {words}.
{head}

# Statuses of ranks: 0 done; 75 saved, not finished; 5, 8 and a signal's: a rank or a link was lost.
again=0
while :; do
    {srun}
    status=$?
    case $status in
        {stopped}) # stopped by preemption, the time limit or a person
            [ -e {stop} ] && exit $status # by a person: leave it so
            squeue -h -j $SLURM_JOB_ID -o %T | grep -qvx RUNNING && exit $status # cancelled
            scontrol requeue $SLURM_JOB_ID && sleep 120
            exit $status
            ;;
        {again})
{start_again}
            ;;
        *) exit $status ;;
    esac
done
"""
_START_AGAIN = """\
            again=$((again + 1))
            [ $again -gt {restarts} ] && exit $status
            echo "ranks ended with $status; starting them again ($again of {restarts})" >&2"""
_QUEUE_AGAIN = """\
            # nodes were lost, and those that are left cannot take the run over
            [ "${{SLURM_RESTART_COUNT:-0}}" -ge {restarts} ] && exit $status
            scontrol requeue $SLURM_JOB_ID && sleep 120
            exit $status"""


@dataclass(frozen=True)
class Batch:
    """How a job behaves in the queue. `options`: of sbatch, for every group of hosts."""

    restarts: int
    warn_s: int  # how long before the time limit ranks are asked to save
    options: Sequence[str] = ()


def script(run: Launchable, batch: Batch) -> str:
    """The batch script. Hosts of several kinds are a het job, a component for each."""
    common = [
        f"--job-name={shlex.quote(run.name)}",
        f"--output={shlex.quote(run.run)}/logs/slurm-%j.txt",
        "--open-mode=append",
        "--requeue",
        f"--signal=USR1@{batch.warn_s}",
    ]
    survives = run.replans and batch.restarts > 0
    if survives:
        common.append("--no-kill")
    components = [_component(run, group, batch.options) for group in run.groups]
    head = [*common, *components[0]]
    for component in components[1:]:
        head += ["hetjob", *component]
    return _SCRIPT.format(
        name=run.name,
        words=run.words,
        head="\n".join(f"#SBATCH {option}" for option in head),
        srun=_hosts(run, batch.restarts) if survives else _srun(run),
        stop=shlex.quote(f"{run.run}/stop-requested"),
        start_again=(_QUEUE_AGAIN if survives else _START_AGAIN).format(restarts=batch.restarts),
        stopped=" | ".join(map(str, STOPPED)),
        again=" | ".join(map(str, START_AGAIN)),
    )


def _hosts(run: Launchable, restarts: int) -> str:
    """A step for each node: who loses one goes on without it."""
    words = [run.python, "-P", "-m", "ratrain", "launch", "hosts", run.run, "--slurm"]
    return shlex.join([*words, "--python", run.python, "--restarts", str(restarts)])


def _component(run: Launchable, group: HostGroup, options: Iterable[str]) -> list[str]:
    asked = [
        f"--nodes={group.hosts} --ntasks={group.ranks} --ntasks-per-node={group.ranks_each} "
        f"--cpus-per-task={run.threads}"
    ]
    if run.kinds > 1:
        asked.append(f"--constraint={group.kind}")
    if run.gpus:
        asked.append(f"--gres=gpu:{group.ranks_each}")
    return [*asked, *options]


def _srun(run: Launchable) -> str:
    """One step over all groups. It ends a minute after its first rank, whatever the others do."""
    groups = ",".join(map(str, range(len(run.groups))))
    words = ["srun", "--wait=60", f"--cpus-per-task={run.threads}"]
    words += [f"--het-group={groups}"] if len(run.groups) > 1 else []
    return f"{' '.join(words)} \\\n        {shlex.join(run.command)}"
