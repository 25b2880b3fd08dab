"""What moving bytes takes of a machine's own processors, measured with `ratrain.transport`.

Ranks on CPUs send over sockets of their own (`runtime.step.connection`), which no room but theirs
may import; calibrations of runs find about the same.

Another process is sent messages and sends each back; between two there is a pause, as in a step,
where compute stands between them. A round is a message sent and one received. The other process is
`python -m ratrain.profile.driving FOLDER ROUNDS NICS`; the folder has the secret and this process's
address.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from ratrain.errors import TransportError
from ratrain.profile.doubt import Watch
from ratrain.profile.processor import Processor, processor_share
from ratrain.readers.files import read_bytes
from ratrain.readers.limits import SMALL_BYTES
from ratrain.readers.writing import write_whole
from ratrain.transport import Config, Counter, Descriptor, Engine, Region, Span

SIZES_BYTES = (1 << 10, 1 << 18, 1 << 20, 1 << 22)
ROUNDS = 20
DRIVING = "processor time of messages"
_PAUSE_S = 0.004
_START_S, _MESSAGE_S = 30.0, 10.0
_THERE, _BACK = 1, 2
"""Immediates of messages in either direction."""
_SECRET, _HERE, _THERE_FILE = "secret", "here", "there"
"""Files of the folder that both processes have: memory of this one, and of the other."""


@dataclass(frozen=True)
class DrivingTimes:
    """Processor time at one end of a message, of each and of its bytes; how long compute stands
    still for it."""

    per_message_s: float
    per_byte_s: float
    stall: float


Start = Callable[[Sequence[str]], subprocess.Popen[bytes]]


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Beside this process; Ctrl-C is for the one that measures."""
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)


def driving_times(watch: Watch, threads: int, rounds: int = ROUNDS) -> DrivingTimes:
    """The `DrivingTimes` of this process, which computes with so many threads."""
    per_message_s, per_byte_s = message_work(watch, rounds)
    return DrivingTimes(per_message_s, per_byte_s, stall_of(threads))


def driving_toml(times: DrivingTimes, mark: str = "") -> list[str]:
    """The table of a cluster file's device; `mark` stands behind its figures."""
    return [
        "[device.driving]",
        f'per_message = "{times.per_message_s * 1e6:.3f}us"{mark}',
        f'per_byte = "{times.per_byte_s * 1e9:.4f}ns"{mark}',
        f"stall = {times.stall:.3f}",
        'source = "measured: processor time at one end of messages over the loopback; stall: from '
        'what this process gets of the processors"',
    ]


def stall_of(threads: int) -> float:
    """Seconds that compute stands still for each second of other work of this process: threads of
    compute keep as many processors busy, or all that there are for it."""
    share = processor_share(threads + 1)
    return Processor(share, min(float(threads), share)).delay_s_per_cpu_s


def message_work(
    watch: Watch, rounds: int = ROUNDS, *, nics: str = "loopback", start: Start = _start
) -> tuple[float, float]:
    """Processor time of a message at one of its ends, and of each of its bytes. `nics`: as engines
    take them; `start`: starts the other process, maybe elsewhere."""
    works_s: list[float] = []
    with _echoing(rounds, nics, start) as (engine, region, place, helper):
        came = engine.counter(_BACK, [place.address])
        for size_bytes in SIZES_BYTES:
            with watch.over(DRIVING, [helper]):
                each_s = [
                    _work_s(lambda n=size_bytes: _round(engine, region[:n], place[:n], came))
                    for _ in range(rounds)
                ]
            works_s.append(median(each_s) / 2)
    return _line(watch, works_s)


def _line(watch: Watch, works_s: Sequence[float]) -> tuple[float, float]:
    """What a message takes, and each byte, of those of all sizes."""
    slope, fixed_s = np.polyfit(SIZES_BYTES, works_s, 1)
    if slope > 0 and fixed_s >= 0:
        return float(fixed_s), float(slope)
    watch.doubt(DRIVING, "long messages took no more than short ones by the byte")
    return 0.0, works_s[-1] / SIZES_BYTES[-1]


def _work_s(round_trip: Callable[[], None]) -> float:
    """Processor time of a round and of the pause behind it, in which its threads fall asleep."""
    began_s = time.process_time()
    round_trip()
    time.sleep(_PAUSE_S)
    return time.process_time() - began_s


def _round(engine: Engine, source: Span, target: Descriptor, came: Counter) -> None:
    engine.write(source, target, imm=_THERE, deadline_s=_MESSAGE_S)
    came.wait(1, _MESSAGE_S)


@contextmanager
def _echoing(
    rounds: int, nics: str, start: Start
) -> Generator[tuple[Engine, Region, Descriptor, int]]:
    """This process's engine and memory, the memory of another that sends back what arrives there,
    and its process number."""
    with tempfile.TemporaryDirectory(prefix="ratrain-driving-") as made:
        folder, secret = Path(made), secrets.token_bytes(32)
        (folder / _SECRET).touch(mode=0o600)
        (folder / _SECRET).write_bytes(secret)
        with Engine(_config(secret, nics)) as engine:
            region = engine.register(np.zeros(max(SIZES_BYTES), np.uint8))
            write_whole(folder / _HERE, region.descriptor().to_bytes().decode())
            module = "ratrain.profile.driving"
            helper = start([sys.executable, "-P", "-m", module, made, str(rounds), nics])
            try:
                yield engine, region, _place_of(helper, folder / _THERE_FILE), helper.pid
            finally:
                helper.kill()
                helper.wait()


def _place_of(helper: subprocess.Popen[bytes], file: Path) -> Descriptor:
    """The memory of the other process, once it has written it down."""
    end_s = time.monotonic() + _START_S
    while not file.exists():
        if time.monotonic() > end_s or helper.poll() is not None:
            raise TransportError("the other process did not start", place="ratrain profile")
        time.sleep(0.02)
    return Descriptor.from_bytes(read_bytes(file, SMALL_BYTES))


def _config(secret: bytes, nics: str) -> Config:
    """Of an engine on sockets that sleeps where it waits, as one does in a step's long waits."""
    return Config(secret, "profile", nics, providers=("sock",), spin_s=0.0)


def echo(folder: Path, rounds: int, nics: str) -> None:
    """The other process: sends back each message, as long as it is."""
    secret = read_bytes(folder / _SECRET, SMALL_BYTES)
    here = Descriptor.from_bytes(read_bytes(folder / _HERE, SMALL_BYTES))
    with suppress(TransportError), Engine(_config(secret, nics)) as engine:
        region = engine.register(np.zeros(max(SIZES_BYTES), np.uint8))
        came = engine.counter(_THERE, [here.address])
        write_whole(folder / _THERE_FILE, region.descriptor().to_bytes().decode())
        for size_bytes in SIZES_BYTES:
            for _ in range(rounds):
                came.wait(1, _START_S)
                span, target = region[:size_bytes], here[:size_bytes]
                engine.write(span, target, imm=_BACK, deadline_s=_MESSAGE_S).wait()


if __name__ == "__main__":
    echo(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
