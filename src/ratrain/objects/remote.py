"""Names in object stores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ratrain.errors import SpecError

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
"""What asks a store of each kind, by the URL's scheme; extras are called as the schemes are."""


@dataclass(frozen=True)
class Remote:
    """An object, or all objects whose names begin with its and a slash; as much of a `Path` as is
    asked of a name."""

    url: str  # scheme://bucket/name, without a slash at its end

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        return Remote(self.url.rpartition("/")[0])


Location: TypeAlias = Path | Remote


def is_url(text: str) -> bool:
    """Whether a user means a URL, and no file: `s3://...`; also as `Path` writes it, `s3:/...`."""
    scheme, colon, rest = text.partition(":")
    return bool(colon) and scheme.isalnum() and len(scheme) > 1 and rest.startswith("/")


def remote_of(text: str, place: str = "") -> Remote:
    """The name that a URL says; a SpecError where it says none."""
    scheme, _, rest = text.partition(":")
    if scheme not in PACKAGES:
        raise SpecError(
            f"{scheme}:// is not an object store that is known",
            place=place or text,
            fix=f"use {', '.join(f'{known}://' for known in PACKAGES)}, or a folder",
        )
    parts = [part for part in rest.split("/") if part]
    if len(parts) < 2:
        raise SpecError(
            "names no place in a bucket",
            place=place or text,
            fix=f"give {scheme}://BUCKET/NAME",
        )
    return Remote(f"{scheme}://{'/'.join(parts)}")
