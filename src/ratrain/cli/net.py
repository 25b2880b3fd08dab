"""`ratrain net`: measure the network between hosts with the transport itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ratrain.transport import Config, Tls


@click.group()
def command() -> None:
    """Measure the network between hosts.

    First `serve` on every host, with the same secret file; then, with the files that they
    write at hand, `check`. The last example tries it on one machine alone.

    \b
    Examples (check takes --json):
      ratrain net serve --secret-file job.key --nics all --name a --out a.json
      ratrain net check --secret-file job.key --nics all a.json b.json
      ratrain net check --local 2 --tls
    """


def _nics(text: str) -> str | tuple[str, ...]:
    return text if text in ("loopback", "all") else tuple(text.split(","))


def _config(
    secret_file: str, nics: str, name: str, provider: str, tls: Tls | None, timeout_s: float = 10.0
) -> Config:
    from ratrain.transport import Config

    secret = Path(secret_file).read_bytes().strip()
    providers = ("shm", "sock") if provider == "auto" else (provider,)
    return Config(secret, name, _nics(nics), providers, connect_timeout_s=timeout_s, tls=tls)


def _tls(*, tls: bool, certificate: str, key: str, authority: str) -> Tls | None:
    from ratrain.transport import Tls

    return Tls(certificate, key, authority) if tls or certificate or key or authority else None


_secret = click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File with the job's secret (16 bytes or more).",
)
_nics_option = click.option(
    "--nics",
    default="loopback",
    show_default=True,
    help='"loopback", "all", or names or addresses of interfaces, with commas.',
)
_provider = click.option(
    "--provider",
    type=click.Choice(["auto", "sock", "shm"]),
    default="sock",
    show_default=True,
    help='Which provider to measure; "auto" takes shm on the same host.',
)


def _seal(function: Callable[..., None]) -> Callable[..., None]:
    """The options of TLS."""
    for option in (
        click.option("--authority", default="", help="PEM: who signs the peers' certificates."),
        click.option("--key", default="", help="PEM: the private key of --certificate."),
        click.option("--certificate", default="", help="PEM: this host's (TLS with an authority)."),
        click.option("--tls", is_flag=True, help="TLS 1.3 vouched for by the secret alone."),
    ):
        function = option(function)
    return function


@command.command()
@_secret
@_nics_option
@_provider
@_seal
@click.option("--name", required=True, help="This host's name in the matrix.")
@click.option("--out", type=click.Path(dir_okay=False), required=True, help="Address file.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON.")
@click.option("--idle", default=600.0, show_default=True, help="End after so many idle seconds.")
def serve(
    secret_file: str | None,
    nics: str,
    provider: str,
    name: str,
    out: str,
    as_json: bool,
    idle: float,
    **tls: Any,
) -> None:
    """Wait on this host to be measured.

    \b
    Example:
        head -c 32 /dev/urandom | base64 > job.key
        ratrain net serve --secret-file job.key --nics eth0 --name a --out a.json
    """
    from ratrain.transport import Engine
    from ratrain.transport.netcheck import Agent

    if secret_file is None:
        raise click.UsageError(
            "--secret-file is needed: head -c 32 /dev/urandom | base64 > job.key"
        )
    with Engine(_config(secret_file, nics, name, provider, _tls(**tls))) as engine:
        agent = Agent(engine)
        Path(out).write_bytes(engine.address.to_bytes())
        if as_json:
            click.echo(engine.address.to_bytes().decode())
        else:
            click.echo(f"{name} waits; its address is in {out}", err=True)
        agent.serve(idle)


@command.command()
@click.argument("addresses", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@_secret
@_nics_option
@_provider
@_seal
@click.option("--local", type=click.IntRange(2, 16), help="Measure so many processes here.")
@click.option("--mib", default=64, show_default=True, help="MiB to send for each message size.")
@click.option("--timeout", "timeout_s", default=10.0, show_default=True, help="To reach a host.")
@click.option(
    "--level",
    type=click.Choice(["host", "room", "site", "world"]),
    default="room",
    show_default=True,
    help="What these hosts share: the link's name in a cluster file.",
)
@click.option("--keep", is_flag=True, help="Leave the agents running.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def check(
    addresses: tuple[str, ...],
    secret_file: str | None,
    nics: str,
    provider: str,
    local: int | None,
    mib: int,
    timeout_s: float,
    level: str,
    keep: bool,
    as_json: bool,
    **tls: Any,
) -> None:
    """Measure every pair of hosts: latency, bandwidth by size and NIC, bytes verified.

    ADDRESSES are the files that `ratrain net serve` wrote. It never hangs: every step has a
    deadline, and a pair that fails is shown with its error (exit code 5). The last lines
    are the [links] of a cluster file (with --json: under "cluster").

    \b
    Example:
        ratrain net check --local 2 --mib 16
    """
    import contextlib

    from ratrain.transport import Address, Engine
    from ratrain.transport.localnet import local_agents
    from ratrain.transport.netcheck import check as measure
    from ratrain.transport.netcheck import dismiss

    with contextlib.ExitStack() as stack:
        if local is not None:
            secret_file, files = stack.enter_context(local_agents(local, provider, _tls(**tls)))
            addresses = tuple(files)
        if secret_file is None or len(addresses) < 2:
            raise click.UsageError("give --secret-file and two address files or more, or --local 2")
        agents = [Address.from_bytes(Path(a).read_bytes()) for a in addresses]
        engine = stack.enter_context(
            Engine(_config(secret_file, nics, "check", provider, _tls(**tls), timeout_s))
        )
        shown = _progress if sys.stderr.isatty() else None
        report = measure(engine, agents, mib << 20, shown, level)
        if not keep:
            dismiss(engine, agents)
    click.echo(json.dumps(report, indent=2)) if as_json else _show(report)
    if any("error" in r or not r["verified"] for r in report["links"]):
        sys.exit(5)


def _progress(done: int, total: int) -> None:
    click.echo(f"\rpair {done + 1} of {total}", nl=done + 1 == total, err=True)


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ratrain.transport.netcheck import links_toml

    names = report["agents"]
    by_pair = {(r["from"], r["to"]): r for r in report["links"]}
    table = Table(title="from row to column: GB/s, and half round trip of 1 KiB in us")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for source in names:
        cells = [_cell(by_pair.get((source, target))) for target in names]
        table.add_row(source, *cells)
    console = Console(width=80)
    console.print(table)
    for row in report["links"]:
        if "error" in row:
            console.print(f"{row['from']} -> {row['to']}: {row['error']}", style="red")
            continue
        rates = "  ".join(
            f"{r['size_bytes'] >> 10} KiB {r['rate_bytes_per_s'] / 1e9:.2f}" for r in row["sizes"]
        )
        verified = "bytes verified" if row["verified"] else "[red]BYTES DIFFER[/red]"
        console.print(
            f"{row['from']} -> {row['to']} ({row['provider']}), GB/s: {rates}; {verified}"
        )
        for nic in row["nics"]:
            console.print(f"   {nic['nic']}: {nic['rate_bytes_per_s'] / 1e9:.2f} GB/s")
    if "cluster" in report:
        click.echo(f"\n# for a cluster file\n{links_toml(report)}")


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    if "error" in row:
        return "failed"
    return f"{row['rate_bytes_per_s'] / 1e9:.2f}  {row['latency_s'] * 1e6:.0f}"
