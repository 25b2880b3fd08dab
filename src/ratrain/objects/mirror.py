"""Objects as files: copied here once, and again when they have changed."""

from __future__ import annotations

import glob
import os
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path

from ratrain.errors import SpecError
from ratrain.objects.client import stores
from ratrain.objects.remote import Remote, remote_of


def mirrored(pattern: str, folder: Path, place: str) -> list[Path]:
    """Copies in `folder` of the objects that a URL names, or that match it as a pattern, sorted by
    name. A copy's own folder is named for the object, its size and what the store says of its
    content, so one that has changed is another file."""
    wanted = remote_of(pattern, place)
    above, names = _split(wanted)
    marks = stores().marks(above)
    known = [name for name in sorted(marks) if _matches(name, names)]
    if not known:
        raise SpecError(
            f"no object matches {wanted}" if glob.has_magic(names) else f"no object: {wanted}",
            place=place,
            fix="correct the URL: it names objects, or a pattern of them",
        )
    return [_copy(above / name, folder, *marks[name]) for name in known]


def _split(wanted: Remote) -> tuple[Remote, str]:
    """The URL above which nothing is a pattern, and what is below it."""
    scheme, _, rest = wanted.url.partition("://")
    bucket, *parts = rest.split("/")
    plain = 0
    while plain < len(parts) - 1 and not glob.has_magic(parts[plain]):
        plain += 1
    return Remote("/".join([f"{scheme}://{bucket}", *parts[:plain]])), "/".join(parts[plain:])


def _matches(name: str, pattern: str) -> bool:
    """`*` stays within a folder, `**` does not."""
    deep = "**" in pattern
    return (deep or name.count("/") == pattern.count("/")) and fnmatchcase(name, pattern)


def _copy(remote: Remote, folder: Path, size: int, mark: str) -> Path:
    key = sha256(f"{remote.url} {size} {mark}".encode()).hexdigest()[:16]
    path = folder / key / remote.name
    if path.is_file() and path.stat().st_size == size:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        stores().get_file(remote, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path
