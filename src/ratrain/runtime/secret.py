"""The secret of a run: whoever holds it belongs to the run, and no one else gets in.

It is in the run's folder, readable by its owner only, and reaches ranks in no other way: it is
in no command line, no environment and no log.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ratrain.errors import SpecError
from ratrain.proof import SECRET_BYTES
from ratrain.readers.files import check_regular

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def write_secret(path: Path) -> None:
    """Writes a new secret, in place of any before."""
    draft = path.with_name(path.name + ".new")
    try:
        draft.unlink(missing_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        draft.replace(path)
    except OSError as error:
        raise SpecError(
            f"the run's secret cannot be written: {error.strerror}",
            place=str(path),
            fix="choose a folder with --run that you can write to",
        ) from error


def read_secret(path: Path) -> bytes:
    """The secret; refused where others than its owner may read it."""
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            mode = os.fstat(handle).st_mode
            check_regular(path, mode)
            secret = file.read(SECRET_BYTES + 1)
    except OSError as error:
        raise SpecError(
            f"the run's secret cannot be read: {error.strerror}",
            place=str(path),
            fix="prepare the run again: `ratrain train JOB --run FOLDER --resume --prepare-only`",
        ) from error
    if mode & _OTHERS:
        raise SpecError(
            f"other users can read the run's secret (mode {stat.S_IMODE(mode):o})",
            place=str(path),
            fix=f"chmod 600 {path}",
        )
    if len(secret) != SECRET_BYTES:
        raise SpecError(
            f"is not a run's secret: it must be {SECRET_BYTES} bytes long",
            place=str(path),
            fix="prepare the run again: `ratrain train JOB --run FOLDER --resume --prepare-only`",
        )
    return secret
