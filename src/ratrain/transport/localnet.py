"""Agents as child processes on this machine, to try `ratrain net check` alone."""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ratrain.errors import TransportError
from ratrain.transport.config import Config
from ratrain.transport.engine import Engine
from ratrain.transport.netcheck import Agent


@contextmanager
def local_agents(count: int, provider: str) -> Generator[tuple[str, list[str]]]:
    """The secret's file and the address files of `count` agents; they end with the context."""
    with tempfile.TemporaryDirectory(prefix="ratnet-") as folder:
        key = Path(folder) / "job.key"
        key.write_text(secrets.token_hex(32))
        files = [Path(folder) / f"p{i}.json" for i in range(count)]
        serve = [sys.executable, "-m", "ratrain.transport.localnet", str(key), provider]
        children = [
            subprocess.Popen([*serve, f.stem, str(f)], stderr=subprocess.DEVNULL) for f in files
        ]
        try:
            end_s = time.monotonic() + 20.0
            while not all(f.exists() and f.stat().st_size for f in files):
                if time.monotonic() > end_s or any(c.poll() is not None for c in children):
                    raise TransportError("a local agent did not start")
                time.sleep(0.05)
            yield str(key), [str(f) for f in files]
        finally:
            for child in children:
                child.terminate()
                child.wait()


def main() -> None:
    """One agent: KEY PROVIDER NAME OUT on the command line."""
    key, provider, name, out = sys.argv[1:5]
    secret = Path(key).read_bytes().strip()
    with Engine(
        Config(secret, name, providers=("shm", "sock") if provider == "auto" else (provider,))
    ) as engine:
        agent = Agent(engine)
        Path(out).write_bytes(engine.address.to_bytes())
        agent.serve(300.0)


if __name__ == "__main__":
    main()
