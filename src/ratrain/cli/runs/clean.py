"""`ratrain clean`: remove what killed runs left on a disk that was a memory tier."""

from __future__ import annotations

from pathlib import Path

import click

from ratrain.cli.terminal.json_output import print_json
from ratrain.cli.terminal.options import PATH


@click.command()
@click.argument("folder", type=PATH)
@click.option("--dry-run", is_flag=True, help="Only list it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; keys name their unit.")
def command(folder: Path, dry_run: bool, as_json: bool) -> None:
    """Remove the files of optimizer states that killed runs left on disk.

    FOLDER is the `path` of a device's tier "disk" in the cluster file, or the folder `tier` of a
    run. A run that ends, or fails, removes its files itself; files of runs that go on stay.

    \b
    Examples:
      ratrain clean /nvme/ratrain --dry-run
      ratrain clean runs/quickstart-ratrain/tier
    """
    from ratrain.describe.units import format_bytes
    from ratrain.errors import SpecError
    from ratrain.storage import is_tier, left_over, remove_left_over

    if not folder.is_dir():
        raise SpecError("there is no such folder", place=str(folder), fix="name a folder of a tier")
    is_one = is_tier(folder)
    found = left_over(folder) if dry_run else remove_left_over(folder)
    if as_json:
        rows = [{"path": str(each.path), "size_bytes": each.size_bytes} for each in found]
        print_json("clean", {"removed": not dry_run, "folders": rows})
        return
    verb = "left over" if dry_run else "removed"
    for each in found:
        click.echo(f"{verb}: {each.path} ({format_bytes(each.size_bytes)})")
    if not found:
        why = "all files in it are of runs that go on" if is_one else "no rank has files in it"
        click.echo(f"{folder}: nothing is left over")
        click.echo(f"{why}; folders below it were not searched")
