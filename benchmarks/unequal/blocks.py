"""A model's blocks timed on the devices of a lab: `python blocks.py CONFIG LENGTH`, as JSON.

Each kind of device is measured by itself, as a user does with `ratrain profile --layers` on each
machine: half of a processor takes twice the time only roughly (2.0 to 2.2 times in one reading).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import IO

import numpy as np
from lab_driving import message_work_in
from split import BlockCosts

from ratrain.describe.huggingface import load_config
from ratrain.describe.layer_profile import LayerProfile, MeasuredTime, shape_of
from ratrain.describe.model import ModelSpec
from ratrain.lab import Lab, Place, place_to_env
from ratrain.lab.inside import inside
from ratrain.profile.driving import DrivingTimes, driving_toml
from ratrain.profile.layers import LayersAsked, layer_profiles, profile_toml
from ratrain.profile.processor import Processor

MICRO_BATCHES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Blocks:
    """Embedding, layer and head as a device of each share of the processors computes them, and what
    a message and a byte of it take of a processor."""

    by_share: dict[float, tuple[LayerProfile, ...]]
    message_work: tuple[float, float]

    def costs(self, size: int = 1) -> BlockCosts:
        """Of a micro-batch of so many sequences, as a whole processor would compute it: by the
        device of the largest share; between two sizes that were measured, on the line."""
        share = max(self.by_share)
        seconds = {
            entry.block: share
            * float(
                np.interp(
                    size,
                    [time.micro_batch for time in entry.times],
                    [time.forward_s + (time.backward_s or 0) for time in entry.times],
                )
            )
            for entry in self.by_share[share]
        }
        return BlockCosts(seconds["embedding"], seconds["layer"], seconds["head"])

    def toml(self, share: float) -> str:
        """What a cluster file says of a device with that share of a processor."""
        stall = Processor(share, share).delay_s_per_cpu_s
        driving = driving_toml(DrivingTimes(*self.message_work, stall))
        return "\n".join([*driving, *profile_toml(list(self.by_share[share]), lambda _: "")])


def measured_blocks(config: Path, length: int, lab: Lab) -> Blocks:
    """The `Blocks` of a model, measured on a device of each share while all devices of the lab
    compute the same: two processors of a machine may be two threads of one core, and share its
    caches. Like a rank of the lab each goes before other work of the machine."""
    model = load_config(config)
    with ExitStack() as ending:
        ranks = [ending.enter_context(_rank(place, config, length)) for place in lab.places]
        for rank in ranks:
            rank.stdout.readline()  # torch is imported
        for rank in ranks:
            rank.stdin.write("go\n")
            rank.stdin.flush()
        first_of_share = {place.cpus: rank for place, rank in zip(lab.places, ranks, strict=True)}
        said = {share: rank.stdout.readline() for share, rank in first_of_share.items()}
    if not all(said.values()):
        sys.exit("the model's blocks could not be timed")
    by_share = {share: _profiles(model, length, text) for share, text in said.items()}
    return Blocks(by_share, message_work_in(lab))


def _profiles(model: ModelSpec, length: int, said: str) -> tuple[LayerProfile, ...]:
    """What a device has said of its blocks."""
    return tuple(
        LayerProfile(
            shape_of(model, block),
            length,
            tuple(MeasuredTime(*row) for row in rows),
            "measured in the lab",
            block,
            dtype="fp32",
        )
        for block, rows in json.loads(said).items()
    )


@dataclass(frozen=True)
class _Rank:
    """A process on a place, which says that it is ready and waits for a line."""

    stdin: IO[str]
    stdout: IO[str]


@contextmanager
def _rank(place: Place, config: Path, length: int) -> Iterator[_Rank]:
    process = subprocess.Popen(
        inside(sys.executable, __file__, str(config), str(length)),
        env={**os.environ, **place_to_env(place), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield _Rank(process.stdin, process.stdout)
    finally:
        process.kill()
        process.communicate()


def main(config: Path, length: int) -> None:
    """Times the blocks again and again, so that the device is busy until this process is ended."""
    import torch

    torch.set_num_threads(1)
    asked = LayersAsked(load_config(config), length, MICRO_BATCHES)
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        timed = layer_profiles(asked)
        times = {entry.block: [astuple(time) for time in entry.times] for entry in timed.entries}
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
