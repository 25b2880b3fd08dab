"""The program of a job, and its proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratrain.api.jobs import Job, job_of
from ratrain.api.plans import Plan
from ratrain.api.shown import Shown
from ratrain.describe.units import counted, format_bytes
from ratrain.errors import SpecError
from ratrain.plan import Case, case_of_job, case_of_plan, load_plan
from ratrain.program.file import DERIVED, NO_BYTES, SCHEDULE, proof_of_file
from ratrain.program.program import Program
from ratrain.program.settled import Proved, proof_of
from ratrain.program.text import write_text
from ratrain.program.text.grid import draw
from ratrain.program.verify import Finding
from ratrain.readers.writing import write_whole

if TYPE_CHECKING:
    from ratrain.report.html import Markup

_DRAWN_RANKS = 16
_DRAWN_OPS = 4000


@dataclass(frozen=True, repr=False)
class BuiltProgram(Shown):
    """Every op of one step, by rank and lane, with what was chosen for the job: `case`."""

    case: Case

    @property
    def job(self) -> Job:
        """The job, with its layout."""
        return Job(self.case.job)

    @cached_property
    def program(self) -> Program:
        """The program itself: its setup, and its lanes of ops."""
        return self.case.program

    @property
    def ops(self) -> int:
        """Ops of one step."""
        return self.case.proved.program_ops

    @property
    def ranks(self) -> int:
        """Ranks that the program spells out; identical replicas are spelled out once."""
        return self.case.proved.short.setup.ranks

    def save(self, path: str | Path) -> Path:
        """Writes the program's text, which is complete: `verify` and `ratrain verify` read it."""
        write_whole(Path(path), write_text(self.case.proved.program))
        return Path(path)

    def to_dict(self) -> dict[str, Any]:
        """The job, and what was chosen for it."""
        return self.case.facts()

    def _lines(self) -> list[str]:
        lines = self.case.headline()
        if self.ranks <= _DRAWN_RANKS and self.ops <= _DRAWN_OPS:
            return [*lines, "", *draw(self.program)]
        return [*lines, f"{counted(self.ops, 'op')} of {counted(self.ranks, 'rank')}"]


Subject = Job | Plan | BuiltProgram | str | Path
"""What is built, or can be: a path is that of a job (.toml) or of a plan (.json)."""


@dataclass(frozen=True, repr=False)
class Proof(Shown):
    """What was proved of a program over two steps, in whatever order its ops run."""

    proved: Proved
    derived: bool = False
    """Whether its messages were derived from a compute order, and no bytes were given."""

    def __bool__(self) -> bool:
        return self.sound

    @property
    def sound(self) -> bool:
        """Whether nothing was found: it cannot deadlock, and fits in memory."""
        return self.proved.verdict.sound

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong: each has a rule, a rank, an op and a message."""
        return self.proved.verdict.findings

    @property
    def bound_bytes(self) -> int:
        """The peak that no order of ops exceeds, of the fullest rank."""
        return max((bound.total_bytes for bound in self.proved.verdict.bounds), default=0)

    def _lines(self) -> list[str]:
        from textwrap import fill

        setup, verdict = self.proved.short.setup, self.proved.verdict
        ops, ranks = counted(self.proved.program_ops, "op"), counted(setup.ranks, "rank")
        lines = [fill(f"{f.rule}: {f.message}", 80) for f in self.findings[:20]]
        if len(self.findings) > 20:
            lines.append(f"... and {counted(len(self.findings) - 20, 'more finding')}")
        if self.derived:
            lines += [DERIVED, NO_BYTES]
        elif verdict.bounds:
            worst = max(verdict.bounds, key=lambda bound: bound.total_bytes)
            budget = setup.budget_of(worst.rank)
            within = f" (budget {format_bytes(budget)})" if budget else ""
            lines.append(
                f"proven peak {format_bytes(worst.total_bytes)} on rank {worst.rank}{within}"
            )
        if self.sound:
            lines.append(f"sound: {ops} of {ranks}, checked over two steps")
        return lines

    def _markup(self) -> Markup:
        from ratrain.report.html import join, table, tag

        rows = [
            (
                f"rank {bound.rank}",
                format_bytes(bound.total_bytes),
                *_budget(self.proved, bound.rank),
            )
            for bound in self.proved.verdict.bounds
        ]
        markup = super()._markup()
        if not rows or self.derived:
            return markup
        return join(markup, tag("details", tag("summary", "by rank"), table(_HEAD, rows)))


_HEAD = ("rank", "proven peak", "budget")


def _budget(proved: Proved, rank: int) -> tuple[str]:
    budget = proved.short.setup.budget_of(rank)
    return (format_bytes(budget) if budget else "-",)


def build(subject: Subject, *, progress: Callable[[int, int], None] | None = None) -> BuiltProgram:
    """The program of a job, or of a plan. A job without a layout is planned first, of which
    `progress` hears: plans simulated, and their number at most.

    A program that does not fit is built all the same: `verify` says so.
    """
    if isinstance(subject, BuiltProgram):
        return subject
    if isinstance(subject, Plan):
        return BuiltProgram(Case(subject.subject))
    if not isinstance(subject, Job) and Path(subject).suffix == ".json":
        return BuiltProgram(case_of_plan(load_plan(subject), str(subject)))
    return BuiltProgram(case_of_job(job_of(subject).spec, progress))


def verify(subject: Subject | Program) -> Proof:
    """Proves a program: every send has its receive, nothing deadlocks, nothing is read before it is
    written or after it is freed, every gradient is complete, and memory stays within the budget in
    whatever order the ops run. What is wrong is returned, not raised: `proof.findings`.

    Besides what `build` takes: a `Program`, a program's text file, or a PyTorch pipelining
    schedule (.csv) that says nothing but what is computed: messages are derived. One that says
    what is sent is for `check_schedule`.
    """
    if isinstance(subject, Program):
        return Proof(proof_of(subject))
    if isinstance(subject, str | Path) and Path(subject).suffix not in (".toml", ".json"):
        path = Path(subject)
        found = proof_of_file(path)
        if isinstance(found, Proved):
            return Proof(found, derived=path.suffix == SCHEDULE)
        raise SpecError(
            "says what is sent, which is checked as written",
            place=str(path),
            fix="use ratrain.check_schedule",
        )
    return Proof(build(subject).case.proved)
