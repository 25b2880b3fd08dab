"""Where methods meet: a lab of a case, one method after the other in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cases import NARROW, Case, cluster_of
from ours import OURS, SHARDED, run_ours, write_job
from outcomes import Outcome, outcome_of

from ratrain.lab import Lab
from ratrain.lab.crew import run_crew

RANK = Path(__file__).parent / "rank.py"
PEERS = ("plain", "ddp", "fsdp2", "fsdp2-kept", "pp", "pp+ddp", "pp+fsdp2", "pp+hooks", "deepspeed")
LAST_WORDS = 6  # lines of a failed rank


@dataclass(frozen=True)
class Field:
    """A case that is written down, and the lab in which it is run."""

    case: Case
    folder: Path
    lab: Lab

    def run(self, method: str, plan: Path | None = None) -> Outcome:
        """One run of one method, of ours by a plan file where one is given; a failure is an outcome
        too."""
        if method.removesuffix(NARROW) in (*OURS, *SHARDED):
            return run_ours(self.case, self.folder, self.lab, method, plan)
        if method == "deepspeed" and not find_spec("deepspeed"):
            return Outcome(method, failure="skipped: pip install deepspeed, which is not there")
        return self._peer(method)

    def _peer(self, method: str) -> Outcome:
        out = self.folder / method
        out.mkdir(parents=True, exist_ok=True)
        said: dict[int, list[str]] = {rank: [] for rank in range(self.case.ranks)}
        command = [sys.executable, str(RANK), str(self.folder / "case.json"), method, str(out)]
        killed = [self.lab.oom_kills(rank) for rank in said]
        endings = run_crew(
            self.lab, command, lambda rank, line: said[rank].append(line.decode(errors="replace"))
        )
        for ending in endings:
            if ending.oom_kills > killed[ending.rank]:
                return Outcome(method, failure=f"rank {ending.rank} was killed: out of memory")
        for ending in endings:
            if ending.status and not ending.stopped:
                words = " | ".join(said[ending.rank][-LAST_WORDS:])
                return Outcome(method, failure=f"rank {ending.rank} failed: {words}")
        return outcome_of(method, out, self.case.ranks, self.case.warm_up, self.case.tokens)


@contextmanager
def field_of(case: Case, folder: Path) -> Iterator[Field]:
    """The lab of a case, for as long as the `with` block runs."""
    case.write(folder)
    write_job(case, folder)
    with Lab(cluster_of(folder), case.ranks) as lab:
        yield Field(case, folder, lab)
