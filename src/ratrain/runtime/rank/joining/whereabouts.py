"""Where rank 0 listens, in a file of the run's folder: for launchers that do not say beforehand on
which host it will be. The file says nothing that is secret, and who comes must prove the run's
secret as everywhere."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ratrain.describe.amounts import Name
from ratrain.describe.strict import Rule, load
from ratrain.errors import SpecError
from ratrain.readers.json import read_json_table
from ratrain.readers.writing import write_whole


@dataclass(frozen=True)
class _Whereabouts:
    address: Name
    port: Annotated[int, Rule(low=1, high=65535)]


def tell(path: Path, where: tuple[str, int]) -> None:
    """Writes it; a folder that cannot be written to is refused later on, in words."""
    address, port = where
    with suppress(OSError, SpecError):
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps({"address": address, "port": port}))


def told(path: Path | None) -> tuple[str, int] | None:
    """What rank 0 has written; None where there is nothing yet, or nothing to read."""
    if path is None or not path.exists():
        return None
    try:
        where = load(_Whereabouts, *read_json_table(path))
    except SpecError:
        return None
    return where.address, where.port
