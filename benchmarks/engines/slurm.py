"""Runs under a real Slurm of four nodes on this machine (root; apt: slurm-wlm, munge), in seconds.

    python benchmarks/engines/slurm.py [--preemptions 20] [--starts 3] [--kills 3] [--losses 3]

- from `srun` to the first step's line of metrics;
- preemptions of one run: from the moment the preempting job is submitted until no rank is left,
  steps lost, and whether the losses are, bit by bit, those of an undisturbed run;
- from the kill of a rank inside a job to the first new step;
- a node that is lost, of a planned job and of one with a [layout]: until the first new step, until
  Slurm drops the node, and from then to the next step;
- a het job whose groups were swapped in the script: on which kinds its ranks are.
"""

from __future__ import annotations

import argparse
import compileall
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "engines"), str(ROOT / "src")]

from engine_jobs import (  # noqa: E402
    LAYOUT,
    losses,
    prepared,
    rank_processes,
    ratrain,
    steps_done,
    wait_until,
    write_job,
)
from slurm_rig import Slurm, missing  # noqa: E402

from ratrain.checkpoint.listing import listed  # noqa: E402
from ratrain.runtime.run_folder import RunFolder  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preemptions", type=int, default=20)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--losses", type=int, default=3)
    options = parser.parse_args()
    if missing():
        sys.exit(missing())
    compileall.compile_dir(ROOT / "src", quiet=1)  # as an installation does
    with tempfile.TemporaryDirectory(prefix="ratrain-slurm-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "rig").mkdir()
        slurm = Slurm(Path(folder) / "rig")
        try:
            print(
                f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors", flush=True
            )
            starts(slurm, Path(folder) / "starts", options.starts)
            kills(slurm, Path(folder) / "kills", options.kills)
            swapped(slurm, Path(folder) / "swapped")
            preemptions(slurm, Path(folder) / "preempted", options.preemptions)
        finally:
            slurm.close()
        lost_nodes(Path(folder) / "losses", options.losses)
        print(f"load average {os.getloadavg()[0]:.1f}")


def starts(slurm: Slurm, folder: Path, count: int) -> None:
    job = write_job(folder, steps=3)
    for number in range(count):
        run = prepared(job, folder / f"run-{number}")
        began_s = time.monotonic()
        step = slurm.start("srun", "-N4", "-n4", *ratrain("rank", run.path))
        wait_until(lambda run=run: steps_done(run) > 0, "the first step")
        print(f"srun to the first step: {time.monotonic() - began_s:.1f}", flush=True)
        step.communicate(timeout=120)


def kills(slurm: Slurm, folder: Path, count: int) -> None:
    run = prepared(write_job(folder, steps=5000, sequences=16, every=5), folder / "run")
    job = submitted(slurm, run)
    wait_until(lambda: steps_done(run) > 8, "a checkpoint")
    for _ in range(count):
        began_s, killed = time.monotonic(), rank_processes(run)[-1]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda killed=killed: killed not in rank_processes(run), "the rank's end")
        done = steps_done(run)
        wait_until(lambda done=done: steps_done(run) > done + 1, "a new step")
        print(f"a rank killed: first new step {time.monotonic() - began_s:.1f}", flush=True)
        wait_until(lambda done=done: steps_done(run) > done + 8, "a checkpoint")
    slurm.run("scancel", job)
    slurm.clear()


def lost_nodes(folder: Path, count: int) -> None:
    rig = folder / "rig"
    rig.mkdir(parents=True)
    slurm = Slurm(rig, node_timeout_s=10)
    cases = [("planned", ""), ("with a [layout]", LAYOUT)] * count
    try:
        for number, (words, layout) in enumerate(cases):
            where = folder / str(number)
            job_file = write_job(where, steps=5000, every=10, kinds=("any",), layout=layout)
            run = prepared(job_file, where / "run")
            lost_node(slurm, run, words)
            slurm.clear()
    finally:
        slurm.close()


def lost_node(slurm: Slurm, run: RunFolder, words: str) -> None:
    job = submitted(slurm, run)
    wait_until(lambda: steps_done(run) > 12, "a checkpoint")
    slurm.lose("n4")
    began_s = time.monotonic()
    try:
        wait_until(lambda: run.read_spec().episode > 0, "another program")
        first = len(run.read_metrics())
        wait_until(lambda: steps_done(run) > first, "a step without the node")
        back_s = time.monotonic() - began_s
        wait_until(lambda: "n4" not in slurm.nodes_of(job), "Slurm to drop the node")
        dropped_s, done = time.monotonic() - began_s, steps_done(run)
        wait_until(lambda: steps_done(run) > done, "a step after that")
        after_s = time.monotonic() - began_s - dropped_s
    finally:
        slurm.bring_back("n4")
    print(
        f"a node lost, {words}: first new step {back_s:.1f}, dropped by Slurm after "
        f"{dropped_s:.1f}, next step {after_s:.2f} behind that; ranks left "
        f"{run.read_spec().seats.world_size}",
        flush=True,
    )


def swapped(slurm: Slurm, folder: Path) -> None:
    run = prepared(write_job(folder, steps=3), folder / "run")
    slurm.run(*ratrain("launch", "slurm", run.path))
    script = run.path / "slurm.sbatch"
    text = script.read_text().replace("=new", "=x").replace("=old", "=new").replace("=x", "=old")
    script.write_text(text)
    slurm.submit("--wait", str(script))
    told = next(run.logs.glob("slurm-*.txt")).read_text().splitlines()[0]
    print(f"groups swapped (n1, n2 new; ranks 0, 1 planned on new): {told}", flush=True)


def preemptions(slurm: Slurm, folder: Path, count: int) -> None:
    steps = 12 * count
    run = prepared(write_job(folder, steps=steps, sequences=16), folder / "run")
    undisturbed = prepared(write_job(folder, steps=steps, sequences=16), folder / "undisturbed")
    job, gone_s, lost = submitted(slurm, run), list[float](), 0
    for number in range(count):
        done = steps_done(run)
        wait_until(lambda done=done: steps_done(run) > done + 1, "new steps")
        began_s = time.monotonic()
        other = slurm.submit("-p", "high", "-N4", "-n8", "-o", "/dev/null", "--wrap", "true")
        wait_until(lambda: not rank_processes(run), "the end of all ranks")
        gone_s.append(time.monotonic() - began_s)
        saved = max(checkpoint.step for checkpoint in listed(run.checkpoints))
        lost += steps_done(run) - saved
        print(f"preemption {number + 1}: gone after {gone_s[-1]:.2f}, saved {saved}", flush=True)
        slurm.wait_state(job, "PENDING")
        slurm.wait_state(other, "COMPLETED")
        slurm.start_now(job)
    slurm.wait_state(job, "COMPLETED", timeout_s=600)
    slurm.run("srun", "-N4", "-n4", *ratrain("rank", undisturbed.path), timeout=600)
    same = losses(run) == losses(undisturbed)
    print(
        f"{count} preemptions of a run of {steps} steps: gone after {statistics.mean(gone_s):.2f} "
        f"in the mean, {max(gone_s):.2f} at worst; {lost} steps lost; lines of metrics "
        f"{steps_done(run)}; losses bit by bit those of an undisturbed run: {same}; restarts "
        f"{slurm.job(job)['Restarts']}",
        flush=True,
    )


def submitted(slurm: Slurm, run: RunFolder) -> str:
    slurm.run(*ratrain("launch", "slurm", run.path, "--restarts", "100"))
    return slurm.submit("--partition=low", str(run.path / "slurm.sbatch")).partition(";")[0]


if __name__ == "__main__":
    main()
