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

from cases import DEEPSPEED, model_of, read_case
from watch import busy_s, interface_bytes, status_bytes

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
    from peers import builder_of, optimizer_of
    from tokens import batch, samples_of

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        dist.init_process_group("gloo", timeout=PEER_TIMEOUT)
    samples = samples_of(case_path.parent)
    trace = Trace(before_bytes=status_bytes("VmRSS"))
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    method = builder_of(name)(case, model_of(case_path.parent))
    optimizer = None if name == DEEPSPEED else optimizer_of(method.module)
    if size > 1:
        dist.barrier()
    trace.began_s = time.monotonic()
    for step in range(case.warm_up + case.steps):
        loss = method.backward(*batch(case, samples, step, rank % case.data))
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        _note(trace, loss)
    trace.peak_bytes = status_bytes("VmHWM")
    (out / f"trace-{rank}.json").write_text(json.dumps(asdict(trace)))
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


def _note(trace: Trace, loss: float | None) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    trace.ends_s.append(time.monotonic())
    trace.losses.append(loss)
    trace.cpu_s.append(used.ru_utime + used.ru_stime)
    trace.busy_s.append(busy_s())
    name = os.environ.get("RATRAIN_INTERFACE", "")
    dev = Path("/proc/self/net/dev").read_text()
    trace.sent_bytes.append(interface_bytes(dev, name))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
