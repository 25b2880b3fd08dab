"""`ratrain lab`: a cluster file's devices made of this one machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ratrain.lab import Lab
    from ratrain.lab.crew import Ending
    from ratrain.lab.probes import LinkFound, ShareFound


@click.group()
def command() -> None:
    """A slow, small, unequal cluster in this machine (Linux, root).

    Each device of the cluster file gets its own network with the file's rates,
    and a process in it gets the file's share of processors and memory.

    \b
    Examples (all take --json):
      ratrain lab check lab-mixed
      ratrain lab run lab-mixed -- python train.py
      ratrain lab clean
    """


_devices = click.option(
    "--devices", type=click.IntRange(min=1), help="The first so many devices; default: all."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON; keys carry their unit.")


def _lab(target: str, devices: int | None) -> Lab:
    """The lab of a preset, a cluster file, or a job file."""
    from ratrain.describe.job import load_job
    from ratrain.describe.presets import cluster_preset, load_cluster
    from ratrain.describe.strict import read_toml
    from ratrain.errors import SpecError
    from ratrain.lab import Lab

    if not target.endswith(".toml"):
        cluster, default = cluster_preset(target), None
    elif "cluster" in read_toml(Path(target))[0]:
        choice = load_job(target).cluster
        cluster, default = choice.spec, choice.devices
    else:
        cluster, default = load_cluster(Path(target)), None
    count = devices or default or cluster.size
    if count is None:
        raise SpecError(
            "the cluster has as many devices as asked for", place=target, fix="add --devices 4"
        )
    return Lab(cluster, count)


@command.command()
@click.argument("target", metavar="CLUSTER|JOB")
@_devices
@_json
def check(target: str, devices: int | None, as_json: bool) -> None:
    """Make the lab, measure it against its file, remove it.

    Sends over the links (every pair of up to four ports, else a ring), spins and
    takes memory at each place. Exit code 1 where something is outside 0.8 to 1.05
    of the file. Links are measured one at a time.

    \b
    Examples:
      ratrain lab check lab-mixed
      ratrain lab check job.toml --json
    """
    from ratrain.cli.progress import progress
    from ratrain.lab.probes import measure_link, measure_share, pairs

    with _lab(target, devices) as lab, progress("measuring", "parts") as tick:
        limits, todo = lab.limits(), pairs(lab)
        total = len(todo) + len(lab.places)
        links: list[LinkFound] = []
        shares: list[ShareFound] = []
        for source, sink in todo:
            links.append(measure_link(lab, source, sink))
            tick(len(links), total)
        for place in lab.places:
            shares.append(measure_share(lab, place.rank))
            tick(len(links) + len(shares), total)
    click.echo(_json_of(limits, links, shares) if as_json else _table(limits, links, shares))
    if not all(found.fits for found in (*links, *shares)):
        sys.exit(1)


def _json_of(limits: list[str], links: list[LinkFound], shares: list[ShareFound]) -> str:
    from ratrain.describe.tables import as_json as plain

    body = {
        "limits": limits,
        "links": [{**plain(found), "fits": found.fits} for found in links],
        "places": [{**plain(found), "fits": found.fits} for found in shares],
    }
    return json.dumps(body, indent=2)


def _table(limits: list[str], links: list[LinkFound], shares: list[ShareFound]) -> str:
    lines = [*limits, "", f"{'link':12}{'file':>16}{'found':>16}{'ratio':>8}"]
    for link in links:
        wanted, found = link.wanted_bytes_per_s * 8e-6, link.found_bytes_per_s * 8e-6
        name = f"{link.source} -> {link.target}"
        lines.append(
            f"{name:12}{wanted:>9,.1f} Mbit/s{found:>9,.1f} Mbit/s{found / wanted:>8.3f}"
            f"{_mark(link.fits)}"
        )
    lines += ["", f"{'rank':12}{'processors':>11}{'found':>8}{'memory':>12}{'killed at':>12}"]
    for share in shares:
        got = share.found_memory_bytes
        memory = "not tried" if got is None else f"{got / 1e6:,.0f} MB" if share.oom_kills else "no"
        lines.append(
            f"{share.rank:<12}{share.wanted_cpus:>11.2f}{share.found_cpus:>8.2f}"
            f"{share.wanted_memory_bytes / 1e6:>9,.0f} MB{memory:>12}{_mark(share.fits)}"
            f"{_busy(share)}"
        )
    return "\n".join(lines)


def _busy(share: ShareFound) -> str:
    return ": others kept this machine busy" if share.starved else ""


def _mark(fits: bool) -> str:
    return "" if fits else "  not as the file says"


@command.command()
@click.argument("target", metavar="CLUSTER|JOB")
@click.argument("program", nargs=-1, required=True, metavar="-- CMD...")
@_devices
@_json
def run(target: str, program: tuple[str, ...], devices: int | None, as_json: bool) -> None:
    """Run one CMD for each device inside the lab; when one fails, all end.

    Each has RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR (rank 0's), MASTER_PORT,
    RATRAIN_INTERFACE and GLOO_SOCKET_IFNAME. Lines of output start with the rank;
    with --json they go to stderr. The exit code is that of the first rank that
    failed on its own.

    \b
    Examples:
      ratrain lab run lab-mixed -- python train.py
      ratrain lab run cpu-lab --devices 2 -- ip addr
    """
    from ratrain.describe.tables import as_json as plain
    from ratrain.lab.crew import run_crew

    def say(rank: int, line: bytes) -> None:
        click.echo(f"[{rank}] ".encode() + line, err=as_json)

    with _lab(target, devices) as lab:
        for line in lab.limits():
            click.echo(line, err=True)
        endings = run_crew(lab, program, say)
        memory = {place.rank: place.memory_bytes for place in lab.places}
    failed = [ending for ending in endings if ending.status and not ending.stopped]
    for ending in failed:
        click.echo(_why(ending, memory[ending.rank]), err=True)
    if as_json:
        click.echo(json.dumps(plain(endings), indent=2))
    sys.exit(failed[0].status if failed else 0)


def _why(ending: Ending, memory_bytes: int) -> str:
    why = f"rank {ending.rank} ended with status {ending.status}"
    if ending.oom_kills:
        why += f": it was killed because it needed more than its {memory_bytes / 1e6:,.0f} MB"
    return why


@command.command()
@_json
def clean(as_json: bool) -> None:
    """Remove what labs left behind whose makers were killed.

    The next lab does so too.

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
        click.echo(json.dumps({"removed": names}))
        return
    click.echo("\n".join(f"removed {name}" for name in names) or "nothing to remove")
