"""Who owns the run's folder, and on which disks it is: settled before any rank writes to it.

Under `ratrain train` the launcher owns the folder and ranks inherit that. Under another launcher
(torchrun) the first rank on each disk claims it for all; where it is refused, all ranks end with
the same message, and without a trace in the folder of the run that lives there.

Which ranks share a disk is found out with files that each host's first rank makes for a moment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from ratrain.checkpoint.folder import url_of
from ratrain.errors import RatrainError, RunFailed, RunTaken
from ratrain.runtime.ownership import Claim, Say, claim_run, inherited
from ratrain.runtime.rank.joining.membership import Membership
from ratrain.runtime.rank.joining.rendezvous import Everybody, told_by_all
from ratrain.runtime.run_folder import RunFolder

_APPEARS_S = 2.0
"""How long a network file system may take to show another host's new file."""
_LOOK_S = 0.1


class FolderLock:
    """What a rank may do in the run's folder: nothing, until it is known to be ours."""

    def __init__(self, folder: RunFolder, rank: int, command: str) -> None:
        self._folder, self._command = folder, command  # which the owner is called
        self.rank = rank  # the engine's, until this rank has its seat
        self._claim = inherited(folder.path)
        self._settled = self._claim is not None

    @property
    def settled(self) -> bool:
        """Whether the folder is ours, so that failures may be written there."""
        return self._settled

    @property
    def claim(self) -> Claim:
        """This launch's, on the disk that this rank sees."""
        assert self._claim is not None
        return self._claim

    def settle(
        self, membership: Membership, everybody: Everybody, *, disks: str, say: Say
    ) -> Membership:
        """The membership with its disks. All ranks call this together, when they have
        joined. `disks` is what the job allows: "shared" or "per-host"."""
        settled = replace(membership, disk=self._disks(membership, everybody))
        if len(settled.disks) > 1 and disks == "shared" and url_of(self._folder.path) is None:
            raise self._unshared(settled)
        self._claim_all(settled, everybody, say)
        if self.claim.is_mine:  # what asked an earlier attempt to stop does not mean this one
            self._folder.stop_request.unlink(missing_ok=True)
        self._settled = True
        return settled

    def close(self) -> None:
        """Gives the folder free, where this rank has claimed it."""
        if self._claim is not None and self._claim.is_mine:
            self._claim.release()

    def _disks(self, membership: Membership, everybody: Everybody) -> tuple[int, ...]:
        """For each rank the first one that shares its disk."""
        name = everybody(uuid4().hex)[0]
        own_probe = self._probe(name, self.rank)
        problem = ""
        try:
            if membership.logs(self.rank):
                own_probe.parent.mkdir(parents=True, exist_ok=True)
                own_probe.touch()
        except OSError as error:
            problem = error.strerror or str(error)
        for rank, reported in enumerate(everybody(problem)):
            if reported:
                raise RunFailed(
                    f"{membership.place(rank)} cannot write to the run's folder: {reported}",
                    place=str(self._folder.path),
                    fix="let all hosts write to it",
                )
        first_rank = self._first_seen(
            [(rank, self._probe(name, rank)) for rank in membership.hosts]
        )
        seen_by_all = tuple(int(reply) for reply in everybody(str(first_rank)))
        with suppress(OSError):
            own_probe.unlink(missing_ok=True)
        return seen_by_all

    def _probe(self, name: str, rank: int) -> Path:
        return self._folder.path / "owner" / f"seen-{name}-{rank}"

    def _first_seen(self, probes: Sequence[tuple[int, Path]]) -> int:
        """The lowest rank whose file is seen here."""
        end_s = time.monotonic() + _APPEARS_S
        while True:
            first_rank = next((rank for rank, path in probes if path.exists()), self.rank)
            if first_rank == probes[0][0] or time.monotonic() > end_s:
                return first_rank
            time.sleep(_LOOK_S)

    def _unshared(self, membership: Membership) -> RunFailed:
        rank_apart = membership.disks[1]
        return RunFailed(
            f"{membership.place(rank_apart)} and {membership.place(0)} each have their own folder "
            "of this name: a file that one has just created does not appear for the other",
            place=str(self._folder.path),
            fix="put the run's folder on a disk that all hosts share; or let each host save its "
            'part to its own disk: disks = "per-host" in the job\'s [checkpoint]',
        )

    def _claim_all(self, membership: Membership, everybody: Everybody, say: Say) -> None:
        own_answer: dict[str, Any] = {}
        if membership.keeps(self.rank):
            try:
                self._claim = self._claim or claim_run(
                    self._folder.path, self._command, say, with_url=self.rank == 0
                )
                own_answer = {"number": self._claim.number, "token": self._claim.token}
            except RatrainError as error:
                own_answer = {"refused": [error.what, error.place, error.fix]}
        answers = told_by_all(everybody(json.dumps(own_answer)))
        for keeper in membership.disks:
            if "refused" in answers[keeper]:
                problem, place, fix = answers[keeper]["refused"]
                on_host = (
                    f"on host {membership.names[keeper]} " if len(membership.disks) > 1 else ""
                )
                raise RunTaken(on_host + problem, place=place, fix=fix)
        own_claim = answers[membership.disk[self.rank]]
        self._claim = self._claim or Claim(
            self._folder.path, own_claim["number"], own_claim["token"]
        )
