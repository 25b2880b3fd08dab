"""What a rank's process has for all its episodes, and what it knows in one of them."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType

from ratrain.corpus.of_job import JobData
from ratrain.describe.job import JobSpec
from ratrain.devices import Device, Memory
from ratrain.errors import OF_ANOTHER
from ratrain.program.program import Program
from ratrain.runtime.failures import tell
from ratrain.runtime.ownership import Claim
from ratrain.runtime.rank.devices import own_device
from ratrain.runtime.rank.folder_lock import FolderLock
from ratrain.runtime.rank.joining.membership import Membership
from ratrain.runtime.rank.live import NOTHING, Kept
from ratrain.runtime.rank.orders import Orders
from ratrain.runtime.rank.rank_log import RankLog
from ratrain.runtime.rank.stop import StopRequests
from ratrain.runtime.run_folder import RunFolder, RunSpec
from ratrain.runtime.seats import Seat
from ratrain.runtime.step.allocator import memory_of


@dataclass
class RankProcess:
    """What a rank's process has for all its episodes. `orders`: its launcher's, where that lets
    survivors of a loss go on; `kept`: what is left of the episode before."""

    folder: RunFolder
    lock: FolderLock
    log: RankLog
    requests: StopRequests
    orders: Orders | None = None
    kept: Kept = NOTHING
    device: Device | None = None
    memory: Memory | None = None
    told: BaseException | None = None

    def tell(self, error: BaseException) -> None:
        """Leaves what it ends with in the run's folder, once; what followed from it does not take
        its place."""
        if isinstance(error, OF_ANOTHER) and not isinstance(self.told, (NoneType, *OF_ANOTHER)):
            return
        if self.lock.settled and self.told is not error:
            tell(self.folder, self.log.rank, error)
        self.told = error

    def tell_cause(self, error: BaseException) -> None:
        """The same, but of a lost rank, after which this one may go on."""
        if not isinstance(error, OF_ANOTHER):
            self.tell(error)

    def tell_loss(self, lost: BaseException) -> None:
        """The same of the loss of another, after which this one goes on, and may end otherwise."""
        tell(self.folder, self.log.rank, lost)

    def devices(self, job: JobSpec, spec: RunSpec, membership: Membership) -> tuple[Device, Memory]:
        """What it computes on, from its first episode on, and what it holds of that."""
        if self.device is None or self.memory is None:
            self.device = own_device(job, spec, self.log.rank, membership.host)
            self.memory = memory_of(self.device)
        return self.device, self.memory


@dataclass(frozen=True)
class RankContext:
    """What a rank knows and may do once all have agreed, in one episode."""

    folder: RunFolder
    spec: RunSpec
    job: JobSpec
    program: Program
    data: JobData
    seat: Seat
    membership: Membership
    claim: Claim
    log: RankLog


def forget_failure(folder: RunFolder, rank: int) -> None:
    """What an earlier attempt left would be reported again."""
    folder.rank_file(rank, "failure").unlink(missing_ok=True)


def note(context: RankContext, lines: list[str]) -> None:
    for line in lines:
        context.log.say(line)
        context.folder.add_note(line)
