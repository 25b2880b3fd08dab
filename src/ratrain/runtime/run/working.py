"""A run at a URL and its folder here: what ranks read and write as they go stays in the folder,
checkpoints are at the URL alone, and with each of them all else that another machine needs."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from ratrain.checkpoint.folder import CHECKPOINTS, URL_MARKER, url_of
from ratrain.checkpoint.upload import put_run
from ratrain.corpus.cache import default_cache
from ratrain.errors import SpecError
from ratrain.objects.client import stores
from ratrain.objects.owner import NAME as OWNER
from ratrain.objects.remote import Remote, is_url, remote_of
from ratrain.readers.files import inside
from ratrain.readers.writing import write_whole
from ratrain.runtime.run_folder import MARKER, RunFolder

_LAST = ("config.json", "adapter_config.json")
RUNS = Path("runs")
"""Where new runs are put, in the current folder."""


def working_folder(run: str | Path) -> Path:
    """The folder here of a run that begins or goes on: `run` itself, or of a URL one in `RUNS`, by
    the URL's last name. Where it is new, it gets what the URL has of a run."""
    if not is_url(str(run)):
        return Path(run)
    url = remote_of(str(run))
    path = RUNS / url.name
    other = url_of(path)
    if other != url and path.exists():
        raise SpecError(
            f"its folder here would be {path}, which is that of {other or 'a run that is here'}",
            place=str(url),
            fix="give a URL with another last name, or start it in another folder",
        )
    if not RunFolder(path).holds_run:
        _fetch(url, path)
    return path


@contextmanager
def sent_to(out: str | Path) -> Generator[Path]:
    """A folder to write what is to be at `out`: itself, or for a URL one that is sent there at the
    end, config.json last: without it nobody takes the rest for a model."""
    if not is_url(str(out)):
        yield Path(out)
        return
    url = remote_of(str(out))
    if stores().sizes(url):
        raise SpecError("holds objects already", place=str(url), fix="choose a new URL")
    with TemporaryDirectory() as folder:
        yield Path(folder) / url.name
        files = [path for path in (Path(folder) / url.name).rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: (path.name in _LAST, str(path))):
            stores().put_file(path, url / str(path.relative_to(Path(folder) / url.name)))


def reading_folder(run: str | Path) -> Path:
    """The folder from which a run is read here: `run` itself; of a URL its own, where it was
    trained here, else a copy in the user's cache, made anew."""
    if not is_url(str(run)):
        return Path(run)
    url = remote_of(str(run))
    own = RUNS / url.name
    if url_of(own) == url and RunFolder(own).holds_run:
        return own
    copy = default_cache().parent / "runs" / sha256(url.url.encode()).hexdigest()[:16] / url.name
    shutil.rmtree(copy, ignore_errors=True)
    _fetch(url, copy)
    if not RunFolder(copy).holds_run:
        raise SpecError(
            f"holds no run: it has no {MARKER}",
            place=str(url),
            fix="give the URL that `ratrain train --run` was given",
        )
    return copy


def send_run(folder: RunFolder) -> None:
    """Sends what is newer here than at the run's URL, where it has one: its report."""
    url = url_of(folder.path)
    if url is not None:
        put_run(stores(), folder.path, url, {})


def _fetch(url: Remote, path: Path) -> None:
    """All that a URL has of a run but its checkpoints, run.json last."""
    steps = f"{CHECKPOINTS}/step-"
    names = [n for n in stores().sizes(url) if n != OWNER and not n.startswith(steps)]
    path.mkdir(parents=True, exist_ok=True)
    for name in sorted(names, key=lambda name: name == MARKER):
        target = inside(path, name, str(url))
        target.parent.mkdir(parents=True, exist_ok=True)
        if name == MARKER:  # what makes the folder a run's
            write_whole(path / URL_MARKER, f"{url}\n")
        stores().get_file(url / name, target)
    (path / CHECKPOINTS).mkdir(exist_ok=True)
    write_whole(path / URL_MARKER, f"{url}\n")
