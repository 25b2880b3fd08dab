"""`ratrain lab`: a cluster file's devices emulated on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.measuring.chaos import chaos
from ratrain.cli.terminal.jobs import refuse_overrides, set_values
from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import Whole

if TYPE_CHECKING:
    from ratrain.lab import Lab
    from ratrain.lab.crew import Ending
    from ratrain.lab.probes import MeasuredLink, MeasuredShare


@click.group()
def command() -> None:
    """Emulate a small, slow, unequal cluster on this machine (Linux, root).

    Each device of the cluster file becomes a network namespace with the file's link
    rates, and latencies of 0.5 ms or more; a process in it gets the file's share of
    processors and memory.

    \b
    Examples (all take --json):
      ratrain lab check lab-mixed
      ratrain lab run lab-mixed -- python train.py
      ratrain lab chaos job.toml --seed 7
      ratrain lab clean
    """


command.add_command(chaos)


_devices = click.option(
    "--devices",
    type=Whole(1, 4096),
    help="Use the first N devices. [default: all]",
    metavar="N",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")


def _lab(target: str, devices: int | None, overrides: tuple[str, ...]) -> Lab:
    """The lab of a preset, a cluster file, or a job file."""
    from ratrain.describe.presets import cluster_preset, load_cluster
    from ratrain.errors import SpecError
    from ratrain.lab import Lab
    from ratrain.plan import load_job
    from ratrain.readers.toml import read_toml

    if target.endswith(".toml") and "cluster" in read_toml(Path(target))[0]:
        choice = load_job(target, overrides).cluster
        cluster, default = choice.spec, choice.devices
    else:
        refuse_overrides(Path(target), overrides)
        named = load_cluster(Path(target)) if target.endswith(".toml") else cluster_preset(target)
        cluster, default = named, None
    count = devices or default or cluster.size
    if count is None:
        raise SpecError(
            "the cluster file does not say how many devices", place=target, fix="add --devices 4"
        )
    return Lab(cluster, count)


@command.command()
@click.argument("target", metavar="CLUSTER|JOB")
@_devices
@set_values
@_json
def check(target: str, devices: int | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Set up the lab, measure it against its file, remove it.

    Measures links one at a time (every pair of up to four ports, else a ring): half
    of a message's round trip, then the rate of a stream; then each device's share of
    processors and its memory limit. The exit status is 1 if anything is outside 0.8
    to 1.05 of the file's value, or a latency of 1 ms or more outside 0.9 to 1.1.

    \b
    Examples:
      ratrain lab check lab-mixed
      ratrain lab check job.toml --json
    """
    from ratrain.cli.terminal.progress import progress
    from ratrain.lab.probes import measure_link, measure_share, pairs

    with _lab(target, devices, overrides) as lab, progress("measuring", "parts") as tick:
        limits, todo = lab.limits(), pairs(lab)
        total = len(todo) + len(lab.places)
        links: list[MeasuredLink] = []
        shares: list[MeasuredShare] = []
        tick(0, total)
        for source, sink in todo:
            links.append(measure_link(lab, source, sink))
            tick(len(links), total)
        for place in lab.places:
            shares.append(measure_share(lab, place.rank))
            tick(len(links) + len(shares), total)
    if as_json:
        print_json("lab check", _body(limits, links, shares))
    else:
        click.echo(_table(limits, links, shares))
    if not all(probe.fits for probe in (*links, *shares)):
        sys.exit(1)


def _body(
    limits: list[str], links: list[MeasuredLink], shares: list[MeasuredShare]
) -> dict[str, Any]:
    from ratrain.describe.tables import as_json as plain

    return {
        "limits": limits,
        "links": [{**plain(link), "fits": link.fits} for link in links],
        "places": [{**plain(share), "fits": share.fits} for share in shares],
    }


def _table(limits: list[str], links: list[MeasuredLink], shares: list[MeasuredShare]) -> str:
    head = f"{'link':10}{'file':>16}{'measured':>16}{'ratio':>7}"
    head += f"{'latency':>11}{'measured':>11}{'ratio':>7}"
    lines = [*limits, "", head]
    for link in links:
        rate, measured = link.wanted_bytes_per_s * 8e-6, link.found_bytes_per_s * 8e-6
        name = f"{link.source} -> {link.target}"
        lines.append(
            f"{name:10}{rate:>9,.1f} Mbit/s{measured:>9,.1f} Mbit/s{measured / rate:>7.3f}"
            f"{_latency(link)}{_mark(link.fits)}"
        )
    lines += ["", f"{'rank':12}{'processors':>11}{'measured':>10}{'memory':>12}{'killed at':>12}"]
    for share in shares:
        killed_at_bytes = share.found_memory_bytes
        memory = (
            "not tried"
            if killed_at_bytes is None
            else f"{killed_at_bytes / 1e6:,.0f} MB"
            if share.oom_kills
            else "not killed"
        )
        lines.append(
            f"{share.rank:<12}{share.wanted_cpus:>11.2f}{share.found_cpus:>10.2f}"
            f"{share.wanted_memory_bytes / 1e6:>9,.0f} MB{memory:>12}{_mark(share.fits)}"
            f"{_busy(share)}"
        )
    return "\n".join(lines)


def _latency(link: MeasuredLink) -> str:
    """Milliseconds; no ratio where the lab adds nothing."""
    wanted_ms, found_ms = link.wanted_latency_s * 1e3, link.found_latency_s * 1e3
    ratio = f"{found_ms / wanted_ms:.3f}" if link.is_delayed else "-"
    return f"{wanted_ms:>8.3f} ms{found_ms:>8.3f} ms{ratio:>7}"


def _busy(share: MeasuredShare) -> str:
    return ": other programs kept this machine busy" if share.starved else ""


def _mark(fits: bool) -> str:
    return "" if fits else "  outside the limits"


@command.command()
@click.argument("target", metavar="CLUSTER|JOB")
@click.argument("program", nargs=-1, required=True, metavar="-- CMD...")
@_devices
@set_values
@_json
def run(
    target: str,
    program: tuple[str, ...],
    devices: int | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run CMD once per device inside the lab.

    If one fails, the others are stopped.

    Sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR (rank 0's), MASTER_PORT,
    RATRAIN_INTERFACE and GLOO_SOCKET_IFNAME. Output lines start with the rank; with
    --json they go to stderr. The exit status is that of the first rank that failed.

    \b
    Examples:
      ratrain lab run lab-mixed -- python train.py
      ratrain lab run cpu-lab --devices 2 -- ip addr
    """
    from ratrain.describe.tables import as_json as plain
    from ratrain.lab.crew import run_crew

    def say(rank: int, line: bytes) -> None:
        click.echo(f"[{rank}] ".encode() + line, err=as_json)

    with _lab(target, devices, overrides) as lab:
        for line in lab.limits():
            click.echo(line, err=True)
        endings = run_crew(lab, program, say)
        memory = {place.rank: place.memory_bytes for place in lab.places}
    failed = [ending for ending in endings if ending.status and not ending.stopped]
    for ending in failed:
        click.echo(_why(ending, memory[ending.rank]), err=True)
    if as_json:
        print_json("lab run", {"ranks": plain(endings)})
    sys.exit(failed[0].status if failed else 0)


def _why(ending: Ending, memory_bytes: int) -> str:
    reason = f"rank {ending.rank} ended with status {ending.status}"
    if ending.oom_kills:
        reason += f": killed, as it needed more than its {memory_bytes / 1e6:,.0f} MB"
    return reason


@command.command()
@_json
def clean(as_json: bool) -> None:
    """Remove labs that killed programs left behind.

    Starting a lab does this too.

    \b
    Example: ratrain lab clean
    """
    import os

    from ratrain.errors import Infeasible
    from ratrain.lab.record import clean as remove_stale

    if os.geteuid() != 0:
        raise Infeasible("only root can remove a lab", place="lab", fix="run it as root")
    names = remove_stale()
    if as_json:
        print_json("lab clean", {"removed": names})
        return
    click.echo("\n".join(f"removed {name}" for name in names) or "nothing to remove")
