"""Runs of the simulated protocol with faults that a seed draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from sim_run import PATIENCE_S, STEPS, Bugs, Host, SimRun
from sim_world import SimWorld

LAST_FAULT_S, DEADLINE_S = 40.0, 900.0
"""No fault begins later; by then a run has ended, whatever happened."""
FAULTS = ("kill", "kill", "stop", "power", "cut", "hang", "busy", "two")


NO_BUGS = Bugs()


@dataclass(frozen=True)
class Outcome:
    """How a run went. `log`: what happened, line by line."""

    seed: int
    status: int | None
    steps: int
    attempts: int
    live_sources: int
    lost_steps: int
    simulated_s: float
    log: tuple[str, ...]


class Failed(AssertionError):
    """A seed whose run did what must be impossible."""


def run_seed(seed: int, bugs: Bugs = NO_BUGS) -> Outcome:
    """Runs it; raises `Failed` with everything that happened."""
    world = SimWorld(seed)
    draw = world.random
    run = SimRun(world, [f"host{n}" for n in range(draw.choice((2, 3, 3, 4)))], bugs)
    run.launch(restarts=20)
    at_s = 3.0
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        fault = draw.choice(FAULTS)
        run.strikes[draw.randrange(400)] = lambda host, fault=fault: _strike(run, host, fault)
    for _ in range(draw.choice((0, 0, 1, 1, 2, 3))):
        at_s += draw.choice((0.3, 2.0, 6.0)) * draw.expovariate(1.0)
        if at_s < LAST_FAULT_S:
            host = draw.choice(list(run.hosts.values()))
            world.after(at_s, lambda host=host: _strike(run, host, draw.choice(FAULTS)))
    try:
        world.run(DEADLINE_S, lambda: _is_over(run, world))
        problem = world.problems[0] if world.problems else None
        if problem is None and run.status == 0 and run.auditor.told != STEPS:
            problem = Failed(f"ended well with {run.auditor.told} steps of {STEPS}")
        if problem is None and run.status != 0 and not _excused(run):
            problem = Failed(f"ended with {run.status}: {run.error}")
    except Exception as error:
        problem = error
    finally:
        world.close()
    if problem is not None:
        what = f"seed {seed}: {type(problem).__name__}: {problem}"
        raise Failed("\n".join([what, *world.log[-60:]])) from problem
    auditor = run.auditor
    return Outcome(
        seed, run.status, auditor.told, run.attempts, auditor.live_sources, auditor.lost_steps,
        world.now_s(), tuple(world.log),
    )  # fmt: skip


def _is_over(run: SimRun, world: SimWorld) -> bool:
    if run.auditor.stuck(world.now_s()) and any(host.answers for host in run.hosts.values()):
        raise Failed(f"no step since {run.auditor.changed_s:.1f} s")
    return run.status is not None or bool(world.problems)


def _excused(run: SimRun) -> bool:
    """Whether a run may end without all of its steps: where no host was there for it."""
    return not any(host.answers for host in run.hosts.values()) or "no host" in str(run.error)


def _strike(run: SimRun, host: Host, fault: str) -> None:
    world = run.world
    world.say(f"FAULT {fault} {host.name}")
    run.auditor.struck(host.name, world.now_s())
    lasts_s = world.random.choice((0.5, 3.0, 15.0)) * world.random.expovariate(1.0)
    if fault in ("kill", "two"):
        struck = [host] if fault == "kill" else list(run.hosts.values())[:2]
        for each in struck:
            run.auditor.struck(each.name, world.now_s())
            for process in each.ranks:
                process.die(-9)
    elif fault == "stop":
        for process in host.ranks:
            process.stop()
            world.after(PATIENCE_S + 40.0, process.goes_on)  # it may have nothing left to do
        # Others wait for it as long as the job says.
        run.auditor.changed_s = max(run.auditor.changed_s, world.now_s() + PATIENCE_S)
    elif fault == "power" and host.up:
        run.lose_power(host)
        others = [other for other in run.hosts.values() if other.up]
        if len(others) < 2 or world.random.random() < 0.6:  # else for ever
            world.after(lasts_s, lambda: run.heal(host))
    elif fault == "cut":
        run.cut(host)
        world.after(lasts_s, lambda: run.heal(host))
    elif fault == "hang" and host.up:
        run.hang(host)
        world.after(lasts_s, lambda: run.heal(host))
    elif fault == "busy":
        ranks = [process.actor for process in host.ranks]
        agents = [actor for actor in host.actors if actor not in ranks]
        reason, host.busy_until_s = f"busy {world.now_s()}", world.now_s() + min(lasts_s, 10.0)
        for actor in agents:
            actor.pause(reason)
            world.after(min(lasts_s, 10.0), partial(actor.resume, reason))
