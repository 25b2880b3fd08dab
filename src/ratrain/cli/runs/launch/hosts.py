"""`ratrain launch RUN`: a prepared run on the hosts of its cluster."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH

if TYPE_CHECKING:
    from ratrain.engines.slurm_steps import Node
    from ratrain.runtime.run.hosts import RunHost
    from ratrain.runtime.run_folder import RunSpec


@click.command("hosts")
@click.argument("run", type=PATH)
@click.option(
    "--host",
    metavar="NAME",
    help="Start only this host's ranks, here; without it, every host's over --rsh.",
)
@click.option(
    "--at",
    "addresses",
    multiple=True,
    metavar="NAME=ADDRESS",
    help="A host's address, where its name is none; of a host on several networks all, with "
    "commas between them: tensors go over all.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=29500,
    show_default=True,
    help="At which the host of rank 0 is met by all ranks.",
)
@click.option(
    "--rsh",
    metavar="COMMAND",
    default="ssh",
    show_default=True,
    help="What runs words on a host: COMMAND ADDRESS WORDS.",
)
@click.option(
    "--slurm",
    is_flag=True,
    help="The hosts are the nodes of the Slurm allocation that this is typed in, each reached by a "
    "step of its own.",
)
@click.option(
    "--python",
    metavar="PATH",
    default=sys.executable,
    help="The hosts' Python that has RATrain. [default: this one's path]",
)
@click.option(
    "--restarts",
    type=click.IntRange(0, 100_000),
    default=0,
    show_default=True,
    metavar="N",
    help="Go on after a failure, this often: without hosts that are lost.",
)
@click.option("--claim", hidden=True, help="Of the run's folder: the launcher's.")
@click.option("--start", default="", hidden=True, help="What the launcher calls this start.")
@click.option("--follow-input", is_flag=True, hidden=True, help="Take orders on standard input.")
@click.option("--json", "as_json", is_flag=True, help="Print each host's command, start nothing.")
def command(
    run: Path,
    host: str | None,
    addresses: tuple[str, ...],
    port: int,
    rsh: str,
    slurm: bool,
    python: str,
    restarts: int,
    follow_input: bool,
    claim: str | None,
    start: str,
    as_json: bool,
) -> int:
    """Start the ranks of RUN, which `ratrain train JOB --prepare-only` has made, on the
    hosts of its cluster.

    Without --host, runs each host's command there over ssh, shows what hosts say behind
    their names, and ends with the worst of their statuses. Ctrl-C or SIGTERM asks all of
    them to save and stop; a second one ends them. RUN and what its job reads must be on
    every host under the same path; the command again resumes from the latest checkpoint.

    With --restarts it goes on by itself after a failure: with the ranks that are left and
    what they hold, where they were training. Hosts that do not answer are left out: the run
    is planned anew for the others, and again when they are back.

    \b
    Examples (the word hosts may be left out):
      ratrain launch hosts /shared/run
      ratrain launch hosts /shared/run --at birch=10.0.0.1 --rsh "ssh -l ada"
      ratrain launch hosts /shared/run --host oak --at birch=10.0.0.1
    """
    from ratrain.engines.slurm_steps import ANSWER_S as SLURM_ANSWER_S
    from ratrain.engines.slurm_steps import queue_again
    from ratrain.plan import load_job
    from ratrain.runtime.ownership import handed_on, inherited
    from ratrain.runtime.rank.orders import Rendezvous, new_start
    from ratrain.runtime.run.host_ranks import HostEpisode, run_host_ranks
    from ratrain.runtime.run.hosts import all_hosts_of, host_called, hosts_of
    from ratrain.runtime.run_folder import RunFolder

    folder = RunFolder(run.resolve())
    spec = folder.read_spec()
    hosts = hosts_of(load_job(Path(spec.job_path), spec.overrides), spec)
    names = dict.fromkeys((*all_hosts_of(spec), *(each.name for each in hosts)))
    nodes: dict[str, Node] = {}
    if slurm and host is None:
        nodes, port = _slurm(spec, hosts)
        addresses += tuple(f"{name}={node.name}" for name, node in nodes.items())
    networks = _addresses(addresses, list(names))
    address_of = {name: own[0] for name, own in networks.items()}
    if host is not None and not as_json:
        ranks = host_called(hosts, host).ranks
        first = next(each.name for each in hosts if 0 in each.ranks)
        rendezvous = Rendezvous(spec.seats.world_size, address_of[first], port, start)
        with handed_on(claim) if claim else nullcontext():
            owned = inherited(folder.path) if slurm and claim else None
            return run_host_ranks(
                folder,
                HostEpisode(tuple(ranks), rendezvous),
                networks.get(host, ()),
                follow_input=follow_input,
                goes_on=claim is not None,
                alive=owned.beats if owned else None,  # a step's input stays open
                left_alone=lambda: queue_again(os.environ),
            )

    # Not for one host's ranks, which should begin soon.
    from ratrain.cli.runs.run_report import show_launched
    from ratrain.cli.runs.train import prepare_data
    from ratrain.runtime.kept_metrics import set_damage_aside
    from ratrain.runtime.ownership import Claim, claim_run
    from ratrain.runtime.run.ready import Launcher
    from ratrain.runtime.run.remote import ANSWER_S, HostCommand, Shell
    from ratrain.runtime.run.survive import FolderPlanning, Surviving, asked_over

    def commands(*more: str, start: str = "") -> list[HostCommand]:
        spec = folder.read_spec()
        hosts = hosts_of(load_job(Path(spec.job_path), spec.overrides), spec)
        first = next(each.name for each in hosts if 0 in each.ranks)
        words = (python, "-P", "-m", "ratrain", "launch", str(folder.path))
        rendezvous = Rendezvous(spec.seats.world_size, address_of[first], port, start)
        meet = ("--port", str(port), *(("--start", start) if start else ()), *more)
        return [
            HostCommand(
                each.name,
                address_of[each.name],
                [*words, "--host", each.name, *_at(networks, first, each.name), *meet],
                HostEpisode(tuple(each.ranks), rendezvous),
            )
            for each in hosts
            if each.ranks
        ]

    def reached(name: str) -> list[str]:
        if slurm:
            cpus = (spec.threads or 1) * max(len(each.ranks) for each in hosts)
            return nodes[name].reached(cpus) if name in nodes else ["false"]
        return [*shlex.split(rsh), address_of[name]]

    def say(line: str) -> None:
        click.echo(line, err=True)

    if as_json:
        body = [
            {"host": each.host, "address": each.target, "command": shlex.join(each.words)}
            for each in commands()
        ]
        print_json("launch hosts", {"run": str(folder.path), "hosts": body})
        return 0
    job = load_job(Path(spec.job_path), spec.overrides)
    with ExitStack() as owning:
        own_claim: Claim | None = None
        if restarts and job.checkpoint.disks == "shared":
            own_claim = owning.enter_context(claim_run(folder.path, "ratrain launch", say))
            folder.stop_request.unlink(missing_ok=True)
            for line in set_damage_aside(folder):
                say(line)
        handed = ("--claim", own_claim.words) if own_claim else ()
        answer_s = SLURM_ANSWER_S if slurm else ANSWER_S
        planning = FolderPlanning(
            folder,
            lambda: Launcher(
                "ratrain launch",
                say,
                prepare_data,
                ExitStack(),
                starts_here=False,
                claim=own_claim,
            ),
            say,
        )
        surviving = Surviving(
            planning,
            lambda: commands(
                "--follow-input", *handed, *(["--slurm"] if slurm else []), start=new_start()
            ),
            list(address_of),
            lambda host_command, hear: Shell(
                host_command, hear, reached(host_command.host), answer_s
            ),
            asked_over(reached),
            say,
            goes_on=own_claim is not None,
        )
        status = surviving.run(restarts)
    return show_launched(folder.path, status)


def _slurm(spec: RunSpec, hosts: Sequence[RunHost]) -> tuple[dict[str, Node], int]:
    """The nodes of hosts, those first that have ranks; where rank 0 is met. From now on Slurm's
    signals are for ranks, which get them from it."""
    from ratrain.engines.slurm_steps import allocation_of, node_of_hosts
    from ratrain.runtime.run.hosts import all_hosts_of

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    allocation = allocation_of(os.environ)
    kinds = all_hosts_of(spec)
    ranked = [host.name for host in hosts if host.ranks]
    wanted = dict.fromkeys((*ranked, *kinds))
    wanted = [(name, kinds[name]) for name in wanted]
    return node_of_hosts(wanted, allocation.nodes, {*kinds.values()}), allocation.port


def _at(networks: Mapping[str, tuple[str, ...]], first: str, own: str) -> Iterator[str]:
    """What a host is told: where rank 0 is met, and its own addresses where it has several."""
    told = [own] if len(networks[own]) > 1 else []
    for name in dict.fromkeys([first, *told]):
        yield from ("--at", f"{name}={','.join(networks[name])}")


def _addresses(given: tuple[str, ...], hosts: list[str]) -> dict[str, tuple[str, ...]]:
    """Each host's addresses: those given, else its name."""
    from ratrain.describe.strict import nearest
    from ratrain.errors import SpecError

    addresses: dict[str, tuple[str, ...]] = {host: (host,) for host in hosts}
    for text in given:
        name, _, address = text.partition("=")
        if not all(each.strip() for each in address.split(",")):
            raise SpecError(f"{text!r} has no address", place="--at", fix="write NAME=ADDRESS")
        if name not in addresses:
            raise SpecError(
                f"the run has no host {name!r}", place="--at", fix=nearest(name, list(addresses))
            )
        addresses[name] = tuple(each.strip() for each in address.split(","))
    return addresses
