"""All errors of one input, gathered, so that a user can fix them in one go."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import TracebackType

from ratrain.errors import RatrainError
from ratrain.readers.limits import ERRORS


class Faults:
    """Errors in the order in which they were met. As a context it records one and continues:

    faults = Faults()
    with faults:
        check_this()
    with faults:
        check_that()
    faults.raise_all()
    """

    def __init__(self) -> None:
        self._errors: list[RatrainError] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    def __enter__(self) -> Faults:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, RatrainError):
            self.add(error)
            return True
        return False

    def add(self, error: RatrainError) -> None:
        """Takes an error in, and those that it carries; what was reported already is not reported
        again."""
        parts, error.more = (error, *error.more), ()
        for part in parts:
            if str(part) not in map(str, self._errors):
                self._errors.append(part)

    def raise_all(self) -> None:
        """Raises the first error, with the others in its `more`, where there is one. Errors of one
        file are in the order of its lines."""
        if not self._errors:
            return
        first, *rest = _by_line(self._errors)
        shown = rest[: ERRORS - 1]
        if len(rest) > len(shown):
            kind = type(first)
            shown.append(
                kind(
                    f"{len(rest) - len(shown)} more errors are not shown",
                    place=rest[-1].place,
                    fix="fix these first",
                )
            )
        first.more = tuple(shown)
        raise first


_LINE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?: |$)")


def _by_line(errors: Sequence[RatrainError]) -> list[RatrainError]:
    """Errors sorted by file, as first met, and by line; those without a line end their file."""
    files: dict[str, int] = {}

    def key(error: RatrainError) -> tuple[int, float]:
        known = _LINE.match(error.place)
        file = known["file"] if known else error.place.split(" ")[0]
        line = float(known["line"]) if known else float("inf")
        return files.setdefault(file, len(files)), line

    return sorted(errors, key=key)
