"""Bytes and text of files that users name.

Only regular files are read, and no more of one than its limit: a device never ends, a pipe may
never begin, and a file may grow while it is read.
"""

from __future__ import annotations

import codecs
import difflib
import errno
import os
import stat
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from ratrain.errors import SpecError
from ratrain.readers.limits import JSON_BYTES, NAME_BYTES

_KINDS = (
    (stat.S_ISDIR, "a folder", "give a file in it"),
    (stat.S_ISFIFO, "a pipe", "write it to a file first, and give that"),
    (stat.S_ISCHR, "a device", "give a file"),
    (stat.S_ISBLK, "a device", "give a file"),
    (stat.S_ISSOCK, "a socket", "give a file"),
)
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_MARKED = {mark[:2] for mark, _ in _MARKS}
NO_MORE_FILES = "the disk takes no more files: all its inodes are used"
REMOVE_FILES = "remove files that are not needed, or choose another disk"
_MOST_NEIGHBOURS = 10_000
_CHUNK_BYTES = 1 << 18
_EXAMPLES = Path(__file__).parents[1] / "examples"


def read_bytes(path: Path, most_bytes: int = JSON_BYTES) -> bytes:
    """The content of a regular file of at most `most_bytes`; a SpecError says what it is else."""
    check_name(path)
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            check_regular(path, status.st_mode)
            if status.st_size > most_bytes:
                raise _too_large(path, status.st_size, most_bytes)
            content = read_open(file, most_bytes + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(content) > most_bytes:
        raise _too_large(path, len(content), most_bytes)
    return content


def read_open(file: BinaryIO, most_bytes: int) -> bytes:
    """All of an open file, or its first `most_bytes`, by chunks: one large read would allocate its
    limit, which counts against a rank's memory budget."""
    chunks: list[bytes] = []
    remaining = most_bytes
    while remaining > 0 and (chunk := file.read(min(remaining, _CHUNK_BYTES))):
        chunks.append(chunk)
        remaining -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def read_at(fd: int, data: memoryview, offset: int) -> int:
    """Fills `data` from the file; returns the bytes read, fewer only where the file ends."""
    read = 0
    while read < len(data):
        count = os.preadv(fd, [data[read:]], offset + read)
        if not count:
            break
        read += count
    return read


def read_text(path: Path, most_bytes: int = JSON_BYTES) -> str:
    """The text of a file in UTF-8, without the byte-order mark that some editors write."""
    return decoded(read_bytes(path, most_bytes), str(path))


def decoded(content: bytes, file: str, first_line: int = 1) -> str:
    """The text of bytes in UTF-8; a SpecError names the line of the first byte that is not."""
    if content[:2] in _MARKED:
        for mark, name in _MARKS:
            if content.startswith(mark):
                raise SpecError(f"the text is {name}", place=file, fix="save it as UTF-8")
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + first_line
        raise SpecError(
            f"not UTF-8: byte 0x{error.object[error.start]:02x}",
            place=f"{file}:{line}",
            fix="save it as UTF-8, as with: iconv -f latin1 -t utf-8",
        ) from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + first_line
        raise SpecError(
            "contains a NUL character, so it is not text",
            place=f"{file}:{line}",
            fix="write the file again: this one is damaged, or not text",
        )
    return text


def check_name(path: Path | str, place: str = "") -> None:
    """A SpecError where no file can have this name; `place` says where it was given."""
    text = str(path)
    error_place = place or text
    if not text.strip():
        raise SpecError("an empty name", place=place or "file name", fix="give a file")
    if "\0" in text:
        raise SpecError("a NUL character in a file's name", place=error_place, fix="remove it")
    try:
        parts = [part.encode("utf-8") for part in Path(text).parts]
    except UnicodeEncodeError:
        raise SpecError(
            "a file's name that is not UTF-8", place=error_place, fix="rename the file"
        ) from None
    longest = max(map(len, parts), default=0)
    if longest > NAME_BYTES:
        raise SpecError(
            f"a name of {longest:,} bytes; file systems take {NAME_BYTES}",
            place=error_place,
            fix="use a shorter name",
        )


def check_regular(path: Path, mode: int, problem: str = "cannot be read") -> None:
    """A SpecError for a folder, a pipe, a device, by the file's mode."""
    for is_kind, name, fix in _KINDS:
        if is_kind(mode):
            raise SpecError(f"{problem}: it is {name}, not a file", place=str(path), fix=fix)


def exists(path: Path) -> bool:
    """Whether there is something of that name; False where no file can have it."""
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, no permission on the way, a NUL
        return False


def is_folder(path: Path) -> bool:
    """Whether there is a folder of that name; False where no file can have it."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def unreadable(path: Path, error: OSError) -> SpecError:
    """The error of a file that the system does not open or read."""
    fixes = {
        errno.ENOENT: nearest_file(path),
        errno.ENOTDIR: "a part of the path is a file, not a folder: correct it",
        errno.EACCES: "make it readable for this user",
        errno.EPERM: "make it readable for this user",
        errno.EISDIR: "it is a folder: give a file in it",
        errno.ELOOP: "symbolic links form a loop: give the file itself",
        errno.ENAMETOOLONG: "use a shorter name",
        errno.ENXIO: "give a file",
    }
    return SpecError(
        f"cannot be read: {error.strerror or error}",
        place=str(path),
        fix=fixes.get(error.errno or 0, "check its disk, or use a copy"),
    )


def unwritable(path: Path | str, error: OSError, problem: str = "cannot be written") -> SpecError:
    """The error of a file that the system does not make or write."""
    fixes = {
        errno.ENOENT: "give a folder that exists",
        errno.ENOTDIR: "a part of the path is a file, not a folder: correct it",
        errno.EISDIR: "it is a folder: give a file in it",
        errno.EACCES: "choose a place where this user can write",
        errno.EPERM: "choose a place where this user can write",
        errno.EROFS: "choose a place that can be written to",
        errno.ENAMETOOLONG: "use a shorter name",
        errno.ENXIO: "start the pipe's reader first, or give a file",
        errno.EFBIG: "raise the largest size of a file (`ulimit -f`), or choose another disk",
        errno.ENOSPC: "free some space, or choose another disk",
        errno.EDQUOT: "free some space, or choose another disk",
    }
    if error.errno == errno.ENOSPC and takes_no_more_files(Path(path)):
        return SpecError(f"{problem}: {NO_MORE_FILES}", place=str(path), fix=REMOVE_FILES)
    return SpecError(
        f"{problem}: {error.strerror or error}",
        place=str(path),
        fix=fixes.get(error.errno or 0, "choose another place"),
    )


def takes_no_more_files(path: Path) -> bool:
    """Whether the disk that a path is on has used up its inodes, whatever space is left."""
    try:
        status = os.statvfs(next(folder for folder in (path, *path.parents) if exists(folder)))
    except (OSError, StopIteration):
        return False
    return status.f_files > 0 and status.f_favail == 0


def inside(folder: Path, name: object, place: str) -> Path:
    """The file of that name in the folder; a SpecError where the name leads out of it."""
    if not isinstance(name, str) or not name:
        raise SpecError(f"{shown(name)} is not a file name", place=place, fix="give a file")
    check_name(name, place)
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise SpecError(
            f"{shown(name)} is outside the folder",
            place=place,
            fix=f"give a file in {folder}",
        )
    return folder / path


def shown(value: object, most_chars: int = 80) -> str:
    """A value as it is quoted in a message: as its file has it, cut where it is long."""
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, str):
        text = repr(value if len(value) <= most_chars else f"{value[:most_chars]}...")
    elif isinstance(value, int) and value.bit_length() > 4 * most_chars:
        text = f"a number of {value.bit_length() * 3 // 10 + 1:,} digits"
    else:
        text = repr(value)
    return text if len(text) <= most_chars + 8 else f"{text[:most_chars]}..."


def _too_large(path: Path, size_bytes: int, most_bytes: int) -> SpecError:
    size = f"{size_bytes:,} bytes" if size_bytes > most_bytes + 1 else "more"
    return SpecError(
        f"has {size}; at most {most_bytes:,} are read",
        place=str(path),
        fix="check that this is the right file, or split it",
    )


def nearest_file(path: Path) -> str:
    """The fix of a file that is not there: the file of the nearest name, where one is alike."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, _MOST_NEIGHBOURS)]
    except (OSError, ValueError):
        return _missing_folder(path)
    near = difflib.get_close_matches(path.name, names, n=1)
    return f'did you mean "{path.parent / near[0]}"?' if near else "give a file that exists"


def _missing_folder(path: Path) -> str:
    """The fix where not even the folder is there: the manual types `examples/NAME`."""
    if path.parent.name == "examples" and (_EXAMPLES / path.name).exists():
        return f"`ratrain init example {path.name} -o {path.parent}` writes it"
    return f"create the folder {path.parent}, or correct the path"
