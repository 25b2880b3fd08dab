"""A model's blocks timed on one device of a lab: `python blocks.py CONFIG LENGTH`, as JSON.

A device with half of the share takes twice the time: this is what a lab's quota means. To measure
on each device would say the same, and takes as long as torch's imports take there: half a minute on
a tenth of a processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import IO

from split import BlockCosts

from ratrain.describe.huggingface import load_config
from ratrain.describe.layer_profile import LayerProfile, MeasuredTime, shape_of
from ratrain.lab import Lab, Place, place_to_env
from ratrain.lab.inside import inside
from ratrain.profile.layers import LayersAsked, layer_profiles, profile_toml

MICRO_BATCHES = (1, 2, 4)


@dataclass(frozen=True)
class Blocks:
    """Embedding, layer and head as one whole processor computes them."""

    entries: tuple[LayerProfile, ...]

    @property
    def costs(self) -> BlockCosts:
        """Of a micro-batch of one sequence."""
        each = {entry.block: entry.times[0] for entry in self.entries}
        seconds = {block: time.forward_s + time.backward_s for block, time in each.items()}
        return BlockCosts(seconds["embedding"], seconds["layer"], seconds["head"])

    def toml(self, share: float) -> str:
        """What a cluster file says of a device with that share of a processor."""
        slowed = [
            replace(
                entry,
                times=tuple(
                    MeasuredTime(t.micro_batch, t.forward_s / share, t.backward_s / share)
                    for t in entry.times
                ),
            )
            for entry in self.entries
        ]
        return "\n".join(profile_toml(slowed, lambda _: ""))


def measured_blocks(config: Path, length: int, lab: Lab) -> Blocks:
    """The `Blocks` of a model, measured on the device with the largest share while all others of
    the lab compute the same: two processors of a machine may be two threads of one core, and share
    its caches. Like a rank of the lab it goes before other work of the machine."""
    places = sorted(lab.places, key=lambda place: -place.cpus)
    place = places[0]
    with ExitStack() as ending:
        ranks = [ending.enter_context(_rank(each, config, length)) for each in places]
        for rank in ranks:
            rank.stdout.readline()  # torch is imported
        for rank in ranks:
            rank.stdin.write("go\n")
            rank.stdin.flush()
        said = ranks[0].stdout.readline()
    if not said:
        sys.exit("the model's blocks could not be timed")
    model = load_config(config)
    entries = [
        LayerProfile(
            shape_of(model, block),
            length,
            tuple(
                MeasuredTime(size, place.cpus * forward_s, place.cpus * backward_s)
                for size, forward_s, backward_s in rows
            ),
            "measured: a whole processor's time over the share",
            block,
            dtype="fp32",
        )
        for block, rows in json.loads(said).items()
    ]
    return Blocks(tuple(entries))


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
