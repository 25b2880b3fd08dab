"""Agents as child processes on this machine, to try `ratrain net check` on one host."""

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
from ratrain.readers.files import read_bytes
from ratrain.readers.limits import SMALL_BYTES
from ratrain.transport.config import Config, Tls
from ratrain.transport.surface.engine import Engine
from ratrain.transport.uses.netcheck import Agent
from ratrain.transport.wire.tls import Guard


@contextmanager
def local_agents(
    count: int, provider: str, tls: Tls | None = None
) -> Generator[tuple[str, list[str]]]:
    """The secret's file and the address files of `count` agents; they end with the context."""
    with tempfile.TemporaryDirectory(prefix="ratnet-") as folder:
        key = Path(folder) / "job.key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32))
        files = [Path(folder) / f"p{i}.json" for i in range(count)]
        module = "ratrain.transport.uses.localnet"
        serve = [sys.executable, "-P", "-m", module, str(key), provider]
        sealed = _arguments(tls)
        children = [
            subprocess.Popen([*serve, f.stem, str(f), *sealed], stderr=subprocess.DEVNULL)
            for f in files
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


def _arguments(tls: Tls | None) -> list[str]:
    """The files of `tls`, for an agent's command line."""
    if tls is None:
        return []
    Guard(tls)  # says what is wrong with the files; an agent could only fail to start
    return [str(tls.certificate), str(tls.key), str(tls.authority)]


def main() -> None:
    """One agent: KEY PROVIDER NAME OUT [CERTIFICATE KEY AUTHORITY] on the command line."""
    key, provider, name, out = sys.argv[1:5]
    tls = Tls(*sys.argv[5:8]) if len(sys.argv) > 5 else None
    secret = read_bytes(Path(key), SMALL_BYTES).strip()
    providers = ("shm", "sock") if provider == "auto" else (provider,)
    with Engine(Config(secret, name, providers=providers, tls=tls)) as engine:
        agent = Agent(engine)
        Path(out).write_bytes(engine.address.to_bytes())
        agent.serve(300.0)


if __name__ == "__main__":
    main()
