"""One rank of a peer: `python rank.py CASE.json METHOD OUT`. Started at a place of a lab."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cases import model_of, read_case

PEER_TIMEOUT = timedelta(minutes=5)


@dataclass
class Trace:
    """What one rank measured; times on the machine's one monotonic clock."""

    began_s: float = 0.0
    ends_s: list[float] = field(default_factory=list[float])
    losses: list[float | None] = field(default_factory=list[float | None])
    cpu_s: list[float] = field(default_factory=list[float])  # of the process, since it began
    busy_s: list[float] = field(default_factory=list[float])  # of all processors, since boot
    sent_bytes: list[int] = field(default_factory=list[int])  # of its interface
    before_bytes: int = 0  # resident after imports
    peak_bytes: int = 0  # resident at most since then


def main(case_path: Path, name: str, out: Path) -> None:
    """Train, and write the trace."""
    case = read_case(case_path)
    import torch
    import torch.distributed as dist
    from peers import BUILDERS, optimizer_of
    from tokens import batch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        dist.init_process_group("gloo", timeout=PEER_TIMEOUT)
    trace = Trace(before_bytes=_status_bytes("VmRSS"))
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    method = BUILDERS[name](case, model_of(case_path.parent))
    optimizer = optimizer_of(method.module)
    if size > 1:
        dist.barrier()
    trace.began_s = time.monotonic()
    for step in range(case.warm_up + case.steps):
        loss = method.backward(*batch(case, step, rank % case.data))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _note(trace, loss)
    trace.peak_bytes = _status_bytes("VmHWM")
    (out / f"trace-{rank}.json").write_text(json.dumps(asdict(trace)))
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


def _note(trace: Trace, loss: float | None) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    trace.ends_s.append(time.monotonic())
    trace.losses.append(loss)
    trace.cpu_s.append(used.ru_utime + used.ru_stime)
    trace.busy_s.append(_busy_s())
    trace.sent_bytes.append(_interface_bytes())


def _busy_s() -> float:
    """Seconds that all processors together have worked, or were withheld, since boot."""
    fields = Path("/proc/stat").read_text().split()[1:9]
    user, nice, system, _, _, irq, soft, steal = map(int, fields)
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _interface_bytes() -> int:
    """Bytes that this rank's network namespace has sent so far; 0 outside a lab."""
    name = os.environ.get("RATRAIN_INTERFACE")
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        if name and line.strip().startswith(f"{name}:"):
            return int(line.split(":")[1].split()[8])
    return 0


def _status_bytes(key: str) -> int:
    """A size that /proc/self/status names, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
