"""The far process of the fault tests: `python far.py PROVIDER NICS JOB`, told what over stdin."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from kinds import options

from ratrain.errors import TransportError
from ratrain.transport import Config, Descriptor, Engine

SECRET = b"a secret of tests"


PART_BYTES = 9973


def fill(engine: Engine, place: Descriptor, part: int, times: int) -> int:
    """Write part `part` of the target so many times; how many writes have landed."""
    source = engine.register(np.full(PART_BYTES, part + 1, np.uint8), remote=False)
    target = place[part * PART_BYTES : (part + 1) * PART_BYTES]
    for _ in range(times):
        engine.write(source, target, imm=1).wait()
    return times


def main() -> None:
    provider, nics, job = sys.argv[1:4]
    names = nics if nics in ("loopback", "all") else tuple(nics.split(","))
    config = Config(SECRET, "far", nics=names, **options(provider), deadline_s=60.0)
    with Engine(config) as engine:
        target = np.zeros(256 << 20, np.uint8)
        region = engine.register(target)
        print(region.descriptor().to_bytes().decode(), flush=True)
        if job == "receive":
            for line in sys.stdin:
                if line.startswith("count"):
                    print(engine.counter(1).value, flush=True)
                elif line.startswith("sum"):
                    print(int(target[: int(line.split()[1])].sum()), flush=True)
        elif job == "crowd":  # many threads write a part of their own each, many times
            place = Descriptor.from_bytes(sys.stdin.readline().encode())
            first, threads, times = map(int, sys.stdin.readline().split())
            with ThreadPoolExecutor(threads) as pool:
                parts = range(first, first + threads)
                print(
                    sum(pool.map(lambda part: fill(engine, place, part, times), parts)), flush=True
                )
        elif job == "send":  # writes into the descriptor given: once, and for ever once told to
            place = Descriptor.from_bytes(sys.stdin.readline().encode())
            source = engine.register(np.full(place.size_bytes, 7, np.uint8))
            engine.write(source, place, imm=1).wait()
            sys.stdin.readline()
            while True:
                try:
                    engine.write(source, place, imm=1).wait()
                except TransportError as error:
                    print(error, file=sys.stderr, flush=True)
                    time.sleep(0.1)


if __name__ == "__main__":
    main()
