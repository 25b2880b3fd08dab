"""Words run on a host of a lab, as ssh does it: `python -m ratrain.lab.shell HOSTS AT WORDS...`.

HOSTS is a file that `write_hosts` has made, AT the host's address. A host that is down answers as
one that cannot be reached.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from ratrain.lab.place import Place, enter, place_from_env, place_to_env
from ratrain.readers.json import read_json_table

UNREACHABLE = 255
"""The exit status of ssh where there is no connection."""


def write_hosts(path: Path, places: Mapping[str, Place]) -> None:
    """Notes which place is which host, for `main`."""
    hosts = {place.address: [name, place_to_env(place)] for name, place in places.items()}
    path.write_text(json.dumps(hosts))


def down_mark(hosts: Path, name: str) -> Path:
    """A file that is there while a host is down."""
    return hosts.parent / f"down-{name}"


def main(hosts: Path, address: str, words: list[str]) -> None:
    """Becomes a shell on the host, which runs the words; never returns where that works."""
    table, _ = read_json_table(hosts)
    name, where = table[address]
    if down_mark(hosts, name).exists():
        sys.exit(UNREACHABLE)
    place = place_from_env(where)
    assert place is not None
    os.environ.update(where)
    os.environ["RATRAIN_INTERFACE"] = place.interface
    os.environ.setdefault("OMP_NUM_THREADS", str(math.ceil(place.cpus)))
    enter(place)
    line = f"hostname {shlex.quote(name)}; {' '.join(words)}"
    os.execvp("unshare", ["unshare", "--uts", "sh", "-c", line])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
