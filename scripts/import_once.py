"""Imports what RATrain's processes import, so that Python keeps it compiled beside its source.

    .venv/bin/python scripts/import_once.py [MODULE...]

Many machines tell Python to write no bytecode (PYTHONDONTWRITEBYTECODE, common in containers), and
pip is told not to, since a thousand of torch's modules are enough and it has ten times as many.
Without this every rank would compile those thousand at each start: 3.4 of 5.7 seconds.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages

import ratrain

sys.dont_write_bytecode = False
BESIDES = ("torch", "torch.distributed.run", "torch.utils.tensorboard")


def main(further: list[str]) -> None:
    """Imports everything; what cannot be imported on this machine is left out."""
    ours = (each.name for each in walk_packages(ratrain.__path__, "ratrain."))
    for name in (*BESIDES, *ours, *further):
        if not name.endswith("__main__"):
            with suppress(ImportError):
                import_module(name)


if __name__ == "__main__":
    main(sys.argv[1:])
