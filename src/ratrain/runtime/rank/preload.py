"""The library that counts what a rank allocates, where the system's loader finds it.

LD_PRELOAD divides its paths at spaces and colons and has no way to quote them. A library whose path
has one is named by an open descriptor instead, /proc/self/fd/N, which the process keeps over exec.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "LD_PRELOAD"
_DIVIDES = re.compile(r"[ :]")
_HELD = re.compile(r"/proc/self/fd/(\d+):?")


def allocator_library() -> Path | None:
    """The library of `allocator.c`, found without importing torch."""
    package = find_spec("ratrain.runtime.step")
    roots = list(package.submodule_search_locations or []) if package else []
    libraries = [path for root in roots for path in Path(root).glob("allocator_c.*.so")]
    return libraries[0] if libraries else None


def preload(library: Path, environment: MutableMapping[str, str]) -> None:
    """Has the next program that this process becomes load the library before all others."""
    name = str(library)
    if _DIVIDES.search(name):
        handle = os.open(library, os.O_RDONLY)
        os.set_inheritable(handle, True)
        name = f"/proc/self/fd/{handle}"
    before = environment.get(VARIABLE, "")
    environment[VARIABLE] = f"{name}:{before}" if before else name


def forget_held(environment: MutableMapping[str, str]) -> None:
    """Lets a descriptor go that a library was loaded by: what this process starts has none of that
    number, or another file's."""
    held = _HELD.match(environment.get(VARIABLE, ""))
    if held:
        os.close(int(held[1]))
        environment[VARIABLE] = environment[VARIABLE][held.end() :]
