"""Which launch writes below a URL: the one that `owner.json` there names.

It is made by a request that only one can win, and written again every few seconds, each time with
another number, while its launch lives. One that stays as it is while it is watched was left by a
launch that has died, and is replaced; of two that replace it the second one has it. What this
cannot see: an owner that is cut off from the store is taken for dead. It learns of that before its
next checkpoint appears, and stops.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ratrain.errors import RunFailed, RunTaken, SpecError, StoreError
from ratrain.objects.client import Stores
from ratrain.objects.remote import Remote
from ratrain.readers.json import as_table, parse_json

BEAT_S = 5.0
SILENT_S = 20.0
_LOOK_S = 1.0
_SETTLES_S = 1.0
NAME = "owner.json"


class UrlClaim:
    """A launch's claim on what is below a URL, from its making to `release`. `token` is known to
    all processes of the launch; `machine` and `folder` say which launches cannot be there twice:
    who has that folder there owns what is below the URL too."""

    def __init__(
        self,
        url: Remote,
        token: str,
        words: str,
        machine_folder: str,
        say: Callable[[str], None],
    ) -> None:
        self._url, self._owner = url, url / NAME
        self._body: dict[str, Any] = {
            "token": token,
            "owner": words,
            "machine_folder": machine_folder,
            "beat": 0,
        }
        self._stores = Stores()
        self._released = threading.Event()
        try:
            self._claim(say)
        except BaseException:
            self._stores.close()
            raise
        self._beating = threading.Thread(target=self._beat, name="url owner", daemon=True)
        self._beating.start()

    def release(self) -> None:
        """The next launch may write."""
        self._released.set()
        self._beating.join()
        with suppress(StoreError):
            if _read(self._stores, self._owner).get("token") == self._body["token"]:
                self._stores.delete([self._owner])
        self._stores.close()

    def _claim(self, say: Callable[[str], None]) -> None:
        if self._stores.create(self._owner, self._text()):
            return
        before = _read(self._stores, self._owner)
        if before and before.get("machine_folder") != self._body["machine_folder"]:
            say(f"{self._url}: claimed by {_words(before)};")
            say(f"  watching for up to {SILENT_S:g} s whether that launch is still running")
            if self._changes(before):
                raise RunTaken(
                    f"belongs to {_words(before)}",
                    place=str(self._url),
                    fix="wait for it or stop it; a new run needs another URL: --run",
                )
            say(f"{self._url}: the launch that owned it died without releasing it")
        self._stores.put(self._owner, self._text())
        time.sleep(_SETTLES_S)
        after = _read(self._stores, self._owner)
        if after.get("token") != self._body["token"]:
            raise RunTaken(
                f"was taken at this moment by {_words(after)}",
                place=str(self._url),
                fix="wait for it or stop it; a new run needs another URL: --run",
            )

    def _changes(self, before: dict[str, Any]) -> bool:
        """Whether the owner writes again; not where it gives it free."""
        end_s = time.monotonic() + SILENT_S
        while time.monotonic() < end_s:
            time.sleep(_LOOK_S)
            now = _read(self._stores, self._owner)
            if now != before:
                return bool(now)
        return False

    def _text(self) -> str:
        return json.dumps(self._body)

    def _beat(self) -> None:
        while not self._released.wait(BEAT_S):
            self._body["beat"] += 1
            with suppress(StoreError):
                if _read(self._stores, self._owner).get("token") != self._body["token"]:
                    return  # another has it
                self._stores.put(self._owner, self._text())


def require_owner(stores: Stores, url: Remote, token: str) -> None:
    """Raises where another launch writes below a URL by now."""
    now = _read(stores, url / NAME)
    if now.get("token") != token:
        raise RunFailed(
            f"was taken over by {_words(now)}",
            place=str(url),
            fix="nothing of it was changed; the new owner's run can be resumed",
        )


def _read(stores: Stores, owner: Remote) -> dict[str, Any]:
    """What the owner's object says; {} where there is none."""
    text = stores.text(owner)
    if text is None:
        return {}
    try:
        return as_table(*parse_json(text, owner.url))[0]
    except SpecError:
        return {"owner": f"an unknown launch ({owner} does not say which)"}


def _words(body: dict[str, Any]) -> str:
    return str(body.get("owner", "another launch"))
