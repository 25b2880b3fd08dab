"""`ratrain net`: measure the network between hosts with the transport itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import NEW_FILE, OLD_FILE, Real, Whole

if TYPE_CHECKING:
    from ratrain.transport import Address, Config, Tls

MATRIX_COLUMNS = 4


@click.group()
def command() -> None:
    """Measure the network between hosts.

    Start `serve` on every host with the same secret file; collect the address files that they
    write; run `check` with them. The last example needs one machine only.

    \b
    Examples (all take --json):
      ratrain net serve --secret-file job.key --nics all --name a --out a.json
      ratrain net check --secret-file job.key --nics all a.json b.json
      ratrain net check --local 2 --tls
    """


def _nics(text: str) -> str | tuple[str, ...]:
    return text if text in ("loopback", "all") else tuple(text.split(","))


def _config(
    secret_file: str, nics: str, name: str, provider: str, tls: Tls | None, timeout_s: float = 10.0
) -> Config:
    from ratrain.readers.files import read_bytes
    from ratrain.readers.limits import SMALL_BYTES
    from ratrain.transport import Config

    secret = read_bytes(Path(secret_file), SMALL_BYTES).strip()
    if Path(secret_file).stat().st_mode & 0o077:
        click.echo(f"note: other users can read {secret_file}: chmod 600 {secret_file}", err=True)
    providers = ("shm", "sock") if provider == "auto" else (provider,)
    return Config(secret, name, _nics(nics), providers, connect_timeout_s=timeout_s, tls=tls)


def _tls(*, tls: bool, certificate: str, key: str, authority: str) -> Tls | None:
    from ratrain.transport import Tls

    return Tls(certificate, key, authority) if tls or certificate or key or authority else None


_secret = click.option(
    "--secret-file",
    type=OLD_FILE,
    help="File with a shared secret (16 bytes or more).",
)
_nics_option = click.option(
    "--nics",
    default="loopback",
    show_default=True,
    help='"loopback", "all", or interfaces by name or address, separated by commas.',
)
_provider = click.option(
    "--provider",
    type=click.Choice(["auto", "sock", "shm"]),
    default="sock",
    show_default=True,
    help='Provider to measure; "auto" uses shm within a host.',
)


def _seal(function: Callable[..., None]) -> Callable[..., None]:
    """The options of TLS."""
    for option in (
        click.option(
            "--authority",
            default="",
            help="PEM file: the authority that signs the peers' certificates.",
        ),
        click.option("--key", default="", help="PEM file: the private key of --certificate."),
        click.option("--certificate", default="", help="PEM file: this host's certificate."),
        click.option("--tls", is_flag=True, help="TLS 1.3, authenticated by the secret alone."),
    ):
        function = option(function)
    return function


@command.command()
@_secret
@_nics_option
@_provider
@_seal
@click.option("--name", required=True, help="This host's name in the results.")
@click.option("--out", type=NEW_FILE, required=True, help="Write the address to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON.")
@click.option(
    "--idle",
    type=Real(0.1, 1e9),
    metavar="S",
    default=600.0,
    show_default=True,
    help="Stop after this many idle seconds.",
)
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
    """Wait to be measured by `ratrain net check`.

    \b
    Example:
        (umask 077; head -c 32 /dev/urandom | base64 > job.key)
        ratrain net serve --secret-file job.key --nics eth0 --name a --out a.json
    """
    from ratrain.readers.writing import write_whole
    from ratrain.transport import Engine
    from ratrain.transport.uses.netcheck import Agent

    if secret_file is None:
        raise click.UsageError(
            "--secret-file is missing; make one with: "
            "(umask 077; head -c 32 /dev/urandom | base64 > job.key)"
        )
    with Engine(_config(secret_file, nics, name, provider, _tls(**tls))) as engine:
        agent = Agent(engine)
        write_whole(Path(out), engine.address.to_bytes().decode())
        if as_json:
            print_json("net serve", {"address": engine.address.to_json()})
        else:
            click.echo(f"{name} is waiting; its address is in {out}", err=True)
        agent.serve(idle)


@command.command()
@click.argument("addresses", nargs=-1, type=OLD_FILE)
@_secret
@_nics_option
@_provider
@_seal
@click.option(
    "--local", type=Whole(2, 16), metavar="N", help="Measure between N processes of this machine."
)
@click.option(
    "--mib",
    type=Whole(1, 1 << 20),
    metavar="N",
    default=64,
    show_default=True,
    help="MiB to send per message size.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Real(0.1, 1e6),
    metavar="S",
    default=10.0,
    show_default=True,
    help="Seconds to wait for a host.",
)
@click.option(
    "--level",
    type=click.Choice(["host", "room", "site", "world"]),
    default="room",
    show_default=True,
    help="The link's level in a cluster file.",
)
@click.option("--keep", is_flag=True, help="Leave the serving hosts running.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
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
    """Measure latency and bandwidth between every pair of hosts.

    Bandwidth is measured by message size and NIC; the bytes are verified. ADDRESSES are the
    files that `ratrain net serve` wrote. Every measurement has a deadline; a pair that fails
    is shown with its error (exit status 5). The last lines are the [links] of a cluster file
    (with --json: under "cluster").

    \b
    Example:
        ratrain net check --local 2 --mib 16
    """
    import contextlib

    from ratrain.cli.terminal.progress import progress
    from ratrain.transport import Engine
    from ratrain.transport.uses.localnet import local_agents
    from ratrain.transport.uses.netcheck import check as measure
    from ratrain.transport.uses.netcheck import dismiss

    with contextlib.ExitStack() as stack:
        if local is not None:
            secret_file, files = stack.enter_context(local_agents(local, provider, _tls(**tls)))
            addresses = tuple(files)
        if secret_file is None or len(addresses) < 2:
            raise click.UsageError(
                "give --secret-file and at least two address files, or --local 2"
            )
        agents = [_address(Path(file)) for file in addresses]
        engine = stack.enter_context(
            Engine(_config(secret_file, nics, "check", provider, _tls(**tls), timeout_s))
        )
        with progress("measuring", "pairs") as tick:
            report = measure(engine, agents, mib << 20, tick, level)
        if not keep:
            dismiss(engine, agents)
    if as_json:
        print_json("net check", report)
    else:
        _show(report)
    if any("error" in r or not r["verified"] for r in report["links"]):
        sys.exit(5)


def _address(path: Path) -> Address:
    """The address of a file that `serve` wrote."""
    from ratrain.errors import SpecError
    from ratrain.readers.files import read_bytes
    from ratrain.readers.limits import SMALL_BYTES
    from ratrain.transport import Address

    try:
        return Address.from_bytes(read_bytes(path, SMALL_BYTES))
    except SpecError as error:
        place = error.place if str(path) in error.place else str(path)
        fix = error.fix or "give a file that `ratrain net serve` wrote"
        raise SpecError(error.what, place=place, fix=fix) from error


def _show(report: dict[str, Any]) -> None:
    from textwrap import fill

    from ratrain.transport.uses.netcheck import links_toml

    click.echo("\n".join(_matrix(report)))
    for row in report["links"]:
        click.echo()
        if "error" in row:
            text = f"{row['from']} -> {row['to']}: {row['error']}"
            click.echo(click.style(fill(text, 79, subsequent_indent="  "), fg="red"))
            continue
        rates = ", ".join(
            f"{r['size_bytes'] >> 10} KiB {r['rate_bytes_per_s'] / 1e9:.2f}" for r in row["sizes"]
        )
        verified = "bytes verified" if row["verified"] else "BYTES DIFFER"
        click.echo(f"{row['from']} -> {row['to']} ({row['provider']}): {verified}")
        click.echo(fill(f"GB/s by message size: {rates}", 79, initial_indent="  "))
        for nic in row["nics"]:
            click.echo(f"  {nic['nic']}: {nic['rate_bytes_per_s'] / 1e9:.2f} GB/s")
    if "cluster" in report:
        click.echo(f"\n# for a cluster file\n{links_toml(report)}")


def _matrix(report: dict[str, Any]) -> Iterator[str]:
    """Every pair; a few columns at a time, so that many hosts fit 80 columns too."""
    names = report["agents"]
    by_pair = {(row["from"], row["to"]): row for row in report["links"]}
    yield "from row to column: GB/s, and half the round trip of 1 KiB in us"
    for first in range(0, len(names), MATRIX_COLUMNS):
        shown = names[first : first + MATRIX_COLUMNS]
        yield f"{'':16}" + "".join(f"{name[:15]:>16}" for name in shown)
        for source in names:
            cells = (_cell(by_pair.get((source, target))) for target in shown)
            yield f"{source[:15]:16}" + "".join(f"{cell:>16}" for cell in cells)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    if "error" in row:
        return "failed"
    return f"{row['rate_bytes_per_s'] / 1e9:.2f}  {row['latency_s'] * 1e6:.0f}"
