"""What is asked of an object store, by fsspec. Each request is tried again until a deadline; what
then still fails, or would always fail, is one `StoreError` in words."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ratrain.errors import StoreError
from ratrain.objects.remote import PACKAGES

T = TypeVar("T")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_FOR_EVER = (FileNotFoundError, PermissionError, FileExistsError, NotADirectoryError, ValueError)
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run `aws configure`",
    "gs": "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_CONNECTION_STRING",
}


class Bucket:
    """The store of a kind of URLs. `deadline_s`: how long a request is tried."""

    deadline_s = 30.0

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    @cached_property
    def _store(self) -> Any:
        try:
            import_module(PACKAGES[self._scheme])
        except ImportError as error:
            raise StoreError(
                f"needs the package {error.name}, which is not installed",
                place=f"{self._scheme}://",
                fix=f'pip install "ratrain[{self._scheme}]"',
            ) from error
        fsspec: Any = import_module("fsspec")
        once = {"config_kwargs": {"retries": {"max_attempts": 1}}} if self._scheme == "s3" else {}
        store = fsspec.filesystem(
            self._scheme, use_listings_cache=False, skip_instance_cache=True, **once
        )
        store.retries = 1  # `_asked` tries again, for all stores alike
        return store

    def sizes(self, url: str) -> dict[str, int]:
        """The bytes of all objects below a name, by what follows it."""
        return {name: size for name, (size, _) in self.marks(url).items()}

    def marks(self, url: str) -> dict[str, tuple[int, str]]:
        """The bytes of all objects below a name, and what the store says of each one's content: a
        checksum, else when it was written."""

        def find() -> dict[str, Any]:
            self._store.invalidate_cache()
            return self._store.find(url, detail=True)

        cut = len(url.partition("://")[2]) + 1
        found: dict[str, Any] = self._asked("listing", url, find)
        return {
            name[cut:]: (int(info["size"]), _mark(info))
            for name, info in found.items()
            if name[cut:] and not name.endswith("/")
        }

    def read(self, url: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end) of an object; fewer where it ends before."""
        if end <= begin:
            return b""
        return self._asked("reading", url, lambda: self._store.cat_file(url, start=begin, end=end))

    def text(self, url: str) -> str | None:
        """A small object's text; None where there is none."""

        def read() -> str | None:
            try:
                return self._store.cat_file(url).decode(errors="replace")
            except FileNotFoundError:
                return None

        return self._asked("reading", url, read)

    def put(self, url: str, content: bytes) -> None:
        """Writes an object, or replaces it."""
        self._asked("writing", url, lambda: self._store.pipe_file(url, content))

    def put_file(self, path: Path, url: str) -> None:
        """The same with a file's content."""
        self._asked("writing", url, lambda: self._store.put_file(str(path), url))

    def get_file(self, url: str, path: Path) -> None:
        """Writes an object's content to a file."""
        self._asked("reading", url, lambda: self._store.get_file(url, str(path)))

    def create(self, url: str, content: bytes) -> bool:
        """Whether an object is ours: it was not there before. A reply may have been lost, so one
        that holds this very content is."""

        def make() -> bool:
            try:
                self._store.pipe_file(url, content, mode="create")
            except FileExistsError:
                return self._store.cat_file(url) == content
            return True

        return self._asked("writing", url, make)

    def delete(self, urls: list[str]) -> None:
        """Removes objects; those that are gone already count as removed."""
        for url in urls:
            try:
                self._asked("removing", url, lambda url=url: self._store.rm_file(url))
            except StoreError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise

    def _asked(self, doing: str, url: str, ask: Callable[[], T]) -> T:
        end_s, pause_s = time.monotonic() + self.deadline_s, _FIRST_PAUSE_S
        while True:
            try:
                return ask()
            except StoreError:
                raise
            except Exception as error:
                lasting = isinstance(error, _FOR_EVER) or _lacks_credentials(error)
                if lasting or time.monotonic() + pause_s > end_s:
                    raise self._told(doing, url, error) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _told(self, doing: str, url: str, error: Exception) -> StoreError:
        bucket = "/".join(url.split("/")[:3])
        if _lacks_credentials(error):
            problem, fix = "there are no credentials for it", _CREDENTIALS[self._scheme]
        elif isinstance(error, FileNotFoundError):
            problem = f"there is no such object, or no bucket {bucket}"
            fix = "correct the URL, or make the bucket"
        elif isinstance(error, PermissionError):
            problem, fix = f"it is not permitted: {_words(error)}", f"ask for the right to {bucket}"
        else:
            problem = f"{_words(error)}; tried for {self.deadline_s:g} s"
            fix = "see whether the store is reached from here (S3: AWS_ENDPOINT_URL)"
        return StoreError(f"{doing} failed: {problem}", place=url, fix=fix)


def _mark(info: dict[str, Any]) -> str:
    said = (info.get(key) for key in ("ETag", "etag", "md5Hash", "LastModified", "updated"))
    return str(next(filter(None, said), ""))


def _lacks_credentials(error: Exception) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(
        names & {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"}
    )


def _words(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
