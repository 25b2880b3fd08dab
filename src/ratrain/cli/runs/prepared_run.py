"""What `ratrain train --prepare-only` prints: how to start a run on its hosts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.mistakes import fitted_to_terminal

if TYPE_CHECKING:
    from ratrain.runtime.run.hosts import RunHost
    from ratrain.runtime.run.ready import ReadyRun


def show_commands(ready: ReadyRun, as_json: bool) -> None:
    """Prints what starts the run: here over ssh, on each host, or with torchrun."""
    from ratrain.runtime.run.hosts import files_of, hosts_of
    from ratrain.runtime.run.launch import folder_note
    from ratrain.runtime.run.session import torchrun_command

    run, world_size = ready.folder.path, ready.spec.seats.world_size
    hosts = hosts_of(ready.job, ready.spec)
    files = files_of(ready.job, ready.folder, ready.spec.overrides)
    lines = torchrun_command(run, world_size)
    if as_json:
        body: dict[str, Any] = {
            "run": str(run),
            "world_size": world_size,
            "command": "\n".join(lines[:3]),
            "hosts": [vars(host) for host in hosts],
            "files": [str(path) for path in files],
        }
        print_json("train", body)
        return
    note = folder_note(run, ready.job.checkpoint.disks)
    click.echo("\n".join([*_launch_lines(run, hosts), *lines]))
    click.echo(fitted_to_terminal(note, sys.stdout))
    click.echo("The ranks also read:")
    for path in files:
        click.echo(f"  {path}")


def _launch_lines(run: Path, hosts: list[RunHost]) -> list[str]:
    """What to type on which host, and which have nothing to do."""
    from ratrain.describe.ranges import write_ranges

    used = [host for host in hosts if host.ranks]
    first = next(host.name for host in used if 0 in host.ranks)
    width = max(len(host.name) for host in used)
    lines = [
        f"ratrain launch {run.resolve()}",
        "starts all hosts from here, over ssh; or, on each:",
    ]
    for host in used:
        at = f" --at {first}=ADDRESS" if len(used) > 1 else ""
        lines.append(
            f"  {host.name:<{width}}  ratrain launch {run.resolve()} --host {host.name}{at}"
        )
        lines.append(
            f"  {'':<{width}}    rank{'s' * (len(host.ranks) > 1)} "
            f"{write_ranges(host.ranks)} on {host.device}"
        )
    idle = [host.name for host in hosts if not host.ranks]
    if idle:
        lines.append(f"idle: {', '.join(idle)}")
    if len(used) > 1:
        lines.append(f"ADDRESS: where the others reach {first}; left out: {first}")
    lines.append("or with torchrun, on hosts of your own:")
    return lines
