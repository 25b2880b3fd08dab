"""A real Ray on this machine: a head and a node, of two kinds, which end with who made them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from engine_jobs import wait_until

RAY = (sys.executable, "-m", "ray.scripts.scripts")
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_agent_register_timeout_ms": "120000"}


@contextmanager
def ray_of_two(folder: Path) -> Generator[str]:
    """A head whose node is `new`, and a node `old`, of two processors each; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = 20_000 + free.getsockname()[1] % 10_000
    own = Path("/tmp") / f"ray-{os.getpid()}"  # names of its sockets must be short
    os.environ["RAY_AUTH_MODE"] = "disabled"  # a token that Ray has left here would be asked for
    environment = {**os.environ, **ENVIRONMENT}
    common = ["--num-cpus", "2", "--object-store-memory", "80000000", "--block"]
    head = ["--head", "--port", str(port), "--temp-dir", str(own), "--include-dashboard=false"]
    node = ["--address", f"127.0.0.1:{port}"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for words, kind in ((head, "new"), (node, "old")):
            command = [*RAY, "start", *words, *common]
            with (folder / f"{kind}.out").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        [*command, "--labels", f"kind={kind}"],
                        env=environment,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
            time.sleep(1)
            wait_until(lambda: _answers(port), "Ray")
        yield f"127.0.0.1:{port}"
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
