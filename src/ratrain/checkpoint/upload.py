"""A checkpoint on its way to an object store, while the run goes on.

Each host sends its ranks' files. Who ends the checkpoint sees in the store that all files are there
and puts the manifest; before that the step is none, after it whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratrain.checkpoint.best import NAME as BEST
from ratrain.checkpoint.folder import CHECKPOINTS, manifest_text, step_name
from ratrain.checkpoint.listing import prune
from ratrain.checkpoint.manifest import NAME, Manifest
from ratrain.checkpoint.remote import discard_remote
from ratrain.errors import StoreError
from ratrain.objects.client import Stores, stores
from ratrain.objects.owner import require_owner
from ratrain.objects.remote import Remote

_LOOK_S = 0.2
_OF_A_LAUNCH = ("secret", "url", "stop-requested", "places.json")
"""Files of a run's folder that no other machine needs."""
_UNFINISHED = (".partial", ".new")


@dataclass(frozen=True)
class Ending:
    """What the one who ends a checkpoint does. `token`: of the launch that owns what is below the
    URL; nothing is written where another one does by now."""

    manifest: Manifest
    keep: int
    sent: dict[Path, int]  # files of the run's folder that the URL has (`put_run`)
    token: str


class Upload:
    """The files of a partial folder, sent from now on; `ending` is None but for the one who ends
    the checkpoint. A store that does not answer for `patience_s` fails it."""

    def __init__(
        self,
        run: Path,
        url: Remote,
        files: Sequence[Path],
        step: int,
        ending: Ending | None,
        patience_s: float,
    ) -> None:
        self.step = step
        self._run, self._files, self._ending = run, files, ending
        self._url, self._to = url, url / CHECKPOINTS / step_name(step)
        self._patience_s = patience_s
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._send, name="upload", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        """Returns when all is there; raises what went wrong."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _send(self) -> None:
        store = stores()
        store.deadline_s = self._patience_s
        try:
            for path in self._files:
                store.put_file(path, self._to / path.name)
            if self._ending is not None:
                self._end(store, self._ending)
        except Exception as error:
            self._error = error

    def _end(self, store: Stores, ending: Ending) -> None:
        manifest = ending.manifest
        text = manifest_text(manifest, str(self._to))
        self._await_all(store, {record.file: record.size_bytes for record in manifest.files})
        put_run(store, self._run, self._url, ending.sent)
        require_owner(store, self._url, ending.token)
        store.put(self._to / NAME, text.decode())
        discard_remote(store, self._to, kept={NAME, *(record.file for record in manifest.files)})
        prune(self._run, ending.keep, upto=self.step)

    def _await_all(self, store: Stores, wanted: dict[str, int]) -> None:
        """Returns when the store has all files in full size, those of other hosts too."""
        end_s = time.monotonic() + self._patience_s
        while True:
            sizes = store.sizes(self._to)
            missing = [name for name, size in wanted.items() if sizes.get(name) != size]
            if not missing:
                return
            if time.monotonic() > end_s:
                raise StoreError(
                    f"saving failed: {missing[0]} is not there after {self._patience_s:g} s",
                    place=str(self._to),
                    fix="see the message of the host that it comes from",
                )
            time.sleep(_LOOK_S)


def put_run(store: Stores, run: Path, url: Remote, sent: dict[Path, int]) -> None:
    """Copies the files of a run's folder to its URL, but what belongs to one launch: with them it
    is resumed and read on any machine. `sent`: when those there were written; the same ones are not
    sent again."""
    best, episodes = run / CHECKPOINTS / BEST, run / "episodes"
    for path in sorted([*run.iterdir(), best, *episodes.rglob("*")]):
        if not path.is_file() or path.name in _OF_A_LAUNCH or path.suffix in _UNFINISHED:
            continue
        written = path.stat().st_mtime_ns
        if sent.get(path) != written:
            store.put_file(path, url / str(path.relative_to(run)))
            sent[path] = written
