"""User modules that declare kinds, skeletons, passes and the rest, before any is used.

They are named in the environment, which every process of a run inherits, and never in a job file:
a file that one is given must not choose what code runs.
"""

from __future__ import annotations

import os
from importlib import import_module

from ratrain.errors import SpecError

VARIABLE = "RATRAIN_EXTENSIONS"
"""Names of modules, with commas between them."""


def load_extensions() -> None:
    """Imports the modules that the environment names; each declares what it adds, once."""
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        if not all(part.isidentifier() for part in name.split(".")):
            raise SpecError(
                f"{name!r} is not a module name",
                place=VARIABLE,
                fix="write names as in `import`, with commas between them",
            )
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            raise SpecError(
                f"no module {error.name!r}",
                place=VARIABLE,
                fix="install it, or put its folder on PYTHONPATH",
            ) from None
