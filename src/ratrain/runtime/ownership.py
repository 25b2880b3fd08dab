"""Who may write into a run's folder: one launch at a time, on all hosts that share the folder.

    owner/000007.json     the seventh claim: who made it, where, when
    owner/000007.ended    its maker is done

The claim with the highest number owns the folder. A claim is made by creating the file of the
next number, which only one process can do (O_EXCL), on local disks and on network file systems
alike, whatever they make of locks. A claim whose maker died without a word is stale:

- The maker is on this machine (same boot, same process namespace): its process is looked up, by
  number and start time, so that another process of the same number is not taken for it.
- The maker is on another machine or in another container: it touches its claim every `BEAT_S`
  seconds. A claim that stays untouched while we watch it for `SILENT_S` seconds is stale. No
  clocks are compared.

What this cannot see: an owner on another machine that is paused, or cut off from the disk, for
`SILENT_S` seconds is taken for dead. It learns of that at its next beat or save, before it
changes a checkpoint, and stops.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated
from uuid import uuid4

from ratrain.checkpoint.folder import url_of
from ratrain.describe.amounts import Note
from ratrain.describe.strict import Rule, load
from ratrain.errors import RunFailed, RunTaken, SpecError
from ratrain.objects.owner import UrlClaim
from ratrain.readers.json import read_json_table
from ratrain.readers.limits import SMALL_BYTES
from ratrain.readers.numbers import is_number
from ratrain.readers.processes import process_state
from ratrain.runtime.host import boot, pid_namespace
from ratrain.runtime.run_folder import RunFolder, cannot_be_made

BEAT_S = 2.0
SILENT_S = 20.0
_LOOK_S = 0.25
_KEPT_CLAIMS = 8
_VARIABLE = "RATRAIN_RUN_CLAIM"
"""The environment variable that tells ranks of their launcher's claim."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Owner:
    """What a claim says of its maker. `since_s`: seconds since 1970, for people alone."""

    token: str
    command: str
    user: str
    host: str
    pid: Annotated[int, Rule(low=1, high=(1 << 31) - 1)]
    since_s: Annotated[float, Rule(low=0, high=1e11)]
    boot: Note = ""
    pid_namespace: Note = ""
    started: Note = ""  # when the process started, in the kernel's ticks

    @property
    def words(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_s))
        return (
            f"`{self.command}` of user {self.user} on host {self.host}, process {self.pid}, "
            f"since {since}"
        )

    @property
    def is_neighbour(self) -> bool:
        """Whether this process can look the maker up by its number."""
        return bool(self.boot) and (self.boot, self.pid_namespace) == (boot(), pid_namespace())


class Claim:
    """This launch's claim on a run's folder. It beats from `hold` to `release`."""

    def __init__(self, folder: Path, number: int, token: str) -> None:
        self.folder, self.number, self.token = folder, number, token
        self._lost = ""
        self._url_claim: UrlClaim | None = None
        self._released = threading.Event()
        self._beating: threading.Thread | None = None

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    @property
    def is_mine(self) -> bool:
        """Whether this process made it, and keeps it alive."""
        return self._beating is not None

    @property
    def words(self) -> str:
        """What processes of the launch are told of it."""
        return f"{self.number}:{self.token}"

    def hold(self) -> None:
        """Shows other hosts from now on that the owner is alive."""
        self._beating = threading.Thread(target=self._beat, name="run owner", daemon=True)
        self._beating.start()

    def hold_url(self, say: Say) -> None:
        """Makes what is below the run's URL ours too, where it has one."""
        url, owner = url_of(self.folder), _read(_file(self.folder, self.number))
        if url is not None and owner is not None:
            where = f"{owner.boot} {owner.pid_namespace} {self.folder.resolve()}"
            self._url_claim = UrlClaim(url, self.token, owner.words, where, say)

    def release(self) -> None:
        """The next claim may be made."""
        if self._url_claim is not None:
            self._url_claim.release()
        self._released.set()
        if self._beating is not None:
            self._beating.join()
        if not self.problem():
            with suppress(OSError):
                _ended(self.folder, self.number).touch()

    def require(self) -> None:
        """Raises where the folder is ours no longer; to be called before a checkpoint changes."""
        _refuse(self.folder, self.problem())

    def require_seen(self) -> None:
        """The same, as far as the last beat saw: to be called often."""
        _refuse(self.folder, self._lost)

    def beats(self) -> bool:
        """Whether its maker, elsewhere, still touches it; watches it for up to `SILENT_S`."""
        return _beats(_file(self.folder, self.number), _ended(self.folder, self.number))

    def problem(self) -> str:
        """Why the folder is ours no longer, in words; "" while it is."""
        own_claim = _read(_file(self.folder, self.number))
        if own_claim is None or own_claim.token != self.token:
            return "the run's folder was removed, renamed or replaced during the run"
        if not _file(self.folder, self.number + 1).exists():
            return ""
        successor = _read(_file(self.folder, self.number + 1))
        name = successor.words if successor else "another launch"
        return f"the run's folder was taken over by {name}"

    def _beat(self) -> None:
        while not self._released.wait(BEAT_S):
            with suppress(OSError):
                os.utime(_file(self.folder, self.number))
            self._lost = self.problem()
            if self._lost:
                return


def _refuse(folder: Path, problem: str) -> None:
    if problem:
        raise RunFailed(problem, place=str(folder), fix=_LOST_FIX)


_LOST_FIX = (
    "do not move a run's folder during the run; what was saved elsewhere, or by the "
    "new owner, can be resumed"
)


def claim_run(
    folder: Path, command: str, say: Say = lambda _: None, *, with_url: bool = True
) -> Claim:
    """Makes the folder ours, which is made where it is missing; raises `RunTaken` with the owner's
    name where it is somebody's. `say` hears of a wait, and of a dead owner. `with_url`: and what is
    below the run's URL, which one process of a launch does."""
    try:
        _claims(folder).mkdir(parents=True, exist_ok=True)
        claim = _claimed(folder, command, say)
    except OSError as error:
        raise cannot_be_made(folder, error) from error
    _forget(folder, claim.number)
    claim.hold()
    try:
        if with_url:
            claim.hold_url(say)
    except BaseException:
        claim.release()
        raise
    return claim


@contextmanager
def handed_on(words: str) -> Generator[None]:
    """Processes that are started meanwhile find a claim, by its words, with `inherited`."""
    os.environ[_VARIABLE] = words
    try:
        yield
    finally:
        del os.environ[_VARIABLE]


def inherited(folder: Path) -> Claim | None:
    """The claim of the launcher that started this process, which keeps it alive."""
    number, _, token = os.environ.get(_VARIABLE, "").partition(":")
    return Claim(folder, int(number), token) if is_number(number) else None


@contextmanager
def claimed_around(path: Path, command: str, say: Say = lambda _: None) -> Generator[None]:
    """Owns, meanwhile, the run that `path` is or is inside, where there is one."""
    run = run_around(path)
    if run is None:
        yield
        return
    with claim_run(run, command, say):
        yield


def run_around(path: Path) -> Path | None:
    """The nearest run's folder among `path` and its parent folders."""
    resolved = path.resolve()
    folders = (resolved, *resolved.parents)
    return next((folder for folder in folders if RunFolder(folder).holds_run), None)


def _claimed(folder: Path, command: str, say: Say) -> Claim:
    while True:
        newest = _newest(folder)
        if newest:
            _require_stale(folder, newest, say)
        owner = _this_process(command)
        if not _create(_file(folder, newest + 1), owner):
            continue  # another was quicker
        if _newest(folder) == newest + 1:
            return Claim(folder, newest + 1, owner.token)
        _file(folder, newest + 1).unlink(missing_ok=True)  # made after an outdated listing


def _create(path: Path, owner: Owner) -> bool:
    """Whether the claim is ours: it was not there before."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(fd, json.dumps(asdict(owner)).encode())
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    return True


def _require_stale(folder: Path, number: int, say: Say) -> None:
    """Raises `RunTaken` where the maker of a claim lives."""
    path = _file(folder, number)
    if _ended(folder, number).exists():
        return
    owner = _read(path)
    lives = _process_lives(owner) if owner is not None and owner.is_neighbour else None
    owner_name = (
        owner.words if owner is not None else f"an unknown launch ({path} does not say which)"
    )
    if lives is None:
        say(f"{folder}: claimed by {owner_name};")
        say(f"  watching for up to {SILENT_S:g} s whether that launch is still running")
        lives = _beats(path, _ended(folder, number))
        owner = _read(path) or owner
    if lives:
        raise _taken(folder, owner)
    if not _ended(folder, number).exists():
        say(f"{folder}: the launch that owned it died without releasing it: {owner_name}")


def _taken(folder: Path, owner: Owner | None) -> RunTaken:
    if owner is None:
        owner_name, stop = "another launch", "stop it"
    else:
        owner_name, stop = owner.words, f"stop it (`kill -INT {owner.pid}` on {owner.host})"
    return RunTaken(
        f"belongs to {owner_name}",
        place=str(folder),
        fix=f"wait for it or {stop}; a new run needs another folder: --run",
    )


def _process_lives(owner: Owner) -> bool | None:
    """Whether a process of this machine lives; None where the system does not say."""
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process: it exists
        pass
    process = process_state(owner.pid)
    if process is None or not owner.started:
        return None
    return str(process.started_ticks) == owner.started and not process.has_ended


def _beats(path: Path, ended: Path) -> bool:
    """Whether a claim is touched while it is watched."""
    end_s = time.monotonic() + SILENT_S
    before = _touched(path)
    while time.monotonic() < end_s:
        time.sleep(_LOOK_S)
        if ended.exists():
            return False
        if _touched(path) != before:
            return True
    return False


def _touched(path: Path) -> int:
    """When a file was last touched. It is opened for that, since network file systems may answer a
    plain question from a cache."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)


def _forget(folder: Path, number: int) -> None:
    """Removes claims that are no longer needed."""
    for old_number in range(number - _KEPT_CLAIMS, 0, -1):
        path = _file(folder, old_number)
        if not path.exists():
            return
        _ended(folder, old_number).unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def _newest(folder: Path) -> int:
    """The highest number of a claim; 0 where there is none."""
    names = (path.stem for path in _claims(folder).glob("*.json"))
    return max((int(name) for name in names if is_number(name)), default=0)


def _read(path: Path) -> Owner | None:
    """What a claim says; None where there is none, or it is only being written."""
    try:
        return load(Owner, *read_json_table(path, SMALL_BYTES))
    except SpecError:
        return None


def _claims(folder: Path) -> Path:
    return folder / "owner"


def _file(folder: Path, number: int) -> Path:
    return _claims(folder) / f"{number:06d}.json"


def _ended(folder: Path, number: int) -> Path:
    return _claims(folder) / f"{number:06d}.ended"


def _this_process(command: str) -> Owner:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    process = process_state(os.getpid())
    return Owner(
        token=uuid4().hex,
        command=command,
        user=user,
        host=socket.gethostname(),
        pid=os.getpid(),
        since_s=time.time(),
        boot=boot(),
        pid_namespace=pid_namespace(),
        started="" if process is None else str(process.started_ticks),
    )
