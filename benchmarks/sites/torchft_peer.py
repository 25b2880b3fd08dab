"""One site of torchft 0.2 (LocalSGD, DiLoCo, Streaming DiLoCo), over gloo, at a place of a lab:
`python torchft_peer.py METHOD CONFIG LENGTH BATCH STEPS PERIOD OUT`. Site 0 writes each step's
seconds. `pip install torchft==0.2.0`: a wheel for Python 3.11; nothing else needs it.

METHOD is `local-sgd`, or `FRAGMENTS-DELAY` of Streaming DiLoCo (`1-0`: DiLoCo): the model is cut
into FRAGMENTS of like sizes, one of which is sent every PERIOD/FRAGMENTS steps and waited for DELAY
steps after it was begun. The outer optimizer is the paper's (SGD of 0.7, Nesterov 0.9).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

import torch
from peer import timed
from plain_model import Block, Head, TokenTable  # pyright: ignore[reportMissingImports]
from torch import nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torchft import Manager, ProcessGroupGloo  # pyright: ignore[reportMissingImports]
from torchft._torchft import LighthouseServer  # pyright: ignore[reportMissingImports]
from torchft.local_sgd import DiLoCo, LocalSGD  # pyright: ignore[reportMissingImports]

from ratrain.describe.huggingface import load_config
from ratrain.describe.model import ModelSpec

LIMIT = timedelta(minutes=5)
LIGHTHOUSE_PORT = 29510


def own_address() -> str:
    """Of this site, as the other reaches it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))
        return probe.getsockname()[0]


def fragments_of(units: list[nn.Module], count: int) -> list[nn.Module]:
    """Neighbours, of like sizes; none is empty."""
    sizes = [sum(p.numel() for p in unit.parameters()) for unit in units]
    parts: list[list[nn.Module]] = [[] for _ in range(count)]
    begun, at = 0, -1
    for place, (unit, size) in enumerate(zip(units, sizes, strict=True)):
        middle = int((begun + size / 2) / sum(sizes) * count)
        at = min(max(middle, count - len(units) + place), at + 1)
        parts[at].append(unit)
        begun += size
    return [nn.Sequential(*part) for part in parts]


def synchronised(
    method: str, manager: Manager, units: list[nn.Module], optimizer: torch.optim.Optimizer, h: int
) -> AbstractContextManager[object]:
    if method == "local-sgd":
        return LocalSGD(manager, nn.Sequential(*units), optimizer, h)
    count, delay = map(int, method.split("-"))
    parts = fragments_of(units, count)
    outer: list[torch.optim.Optimizer] = [
        torch.optim.SGD(part.parameters(), lr=0.7, momentum=0.9, nesterov=True) for part in parts
    ]
    return DiLoCo(
        manager,
        parts,
        optimizer,
        outer,
        h,
        pin_memory=False,
        use_bucketization=True,
        fragment_sync_delay=delay,
    )


class Meeting:
    """torchft's manager of this site, and at the first one the lighthouse."""

    def __init__(self, site: int, model: nn.Module) -> None:
        address = own_address()
        bind = f"0.0.0.0:{LIGHTHOUSE_PORT}"
        self.lighthouse = (
            None if site else LighthouseServer(bind=bind, min_replicas=2, join_timeout_ms=100)
        )
        self._store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        self.manager = _manager(site, address, self._store.port, model)


def _manager(site: int, address: str, port: int, model: nn.Module) -> Manager:
    def take(state: dict[str, Any]) -> None:
        model.load_state_dict(state)

    return Manager(
        pg=ProcessGroupGloo(timeout=LIMIT),
        load_state_dict=take,
        state_dict=model.state_dict,
        min_replica_size=2,
        use_async_quorum=False,
        timeout=LIMIT,
        quorum_timeout=LIMIT,
        connect_timeout=LIMIT,
        rank=0,
        world_size=1,
        store_addr=address,
        store_port=port,
        lighthouse_addr=f"http://{os.environ['MASTER_ADDR']}:{LIGHTHOUSE_PORT}",
        replica_id=str(site),
        hostname=address,
        init_sync=False,  # the seed has made both sites the same
    )


def units_of(spec: ModelSpec, length: int) -> list[nn.Module]:
    """A model's units, as a seed makes them."""
    layers = [Block(spec, length) for _ in range(spec.layers)]
    units: list[nn.Module] = [TokenTable(spec), *layers, Head(spec)]
    for parameter in nn.Sequential(*units).parameters():
        nn.init.normal_(parameter, std=0.02)
    return units


def main(method: str, config: str, length: int, batch: int, steps: int, period: int) -> list[float]:
    """Seconds of each step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    site, spec = int(os.environ["RANK"]), load_config(Path(config))
    units = units_of(spec, length)
    model = nn.Sequential(*units)
    meeting = Meeting(site, model)
    manager, optimizer = meeting.manager, torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(spec.vocab, (batch, length + 1))
    with synchronised(method, manager, units, optimizer, period):
        times = timed(model, optimizer, tokens, steps)
    synchronisations = manager.current_step()
    if method != "local-sgd":
        synchronisations //= int(method.split("-")[0])
    if synchronisations < steps // period - 1:
        raise SystemExit(f"{synchronisations} of {steps // period} synchronisations were committed")
    if site == 0:
        Path(out).write_text(json.dumps(times))
        time.sleep(2)  # the other site's last calls to the lighthouse
    manager.shutdown(wait=False)
    return times


if __name__ == "__main__":
    name, path, *numbers, out = sys.argv[1:]
    main(name, path, *map(int, numbers))
    os._exit(0)  # torchft's threads of heartbeats wait for a lighthouse that has gone
