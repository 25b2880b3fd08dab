"""A process's way to object stores: an agent that it starts, and ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from ratrain.errors import StoreError
from ratrain.objects.remote import Remote

READ_DEADLINE_S = 30.0
"""How long a verb tries to read from a store that does not answer."""


class Stores:
    """Object stores, asked one thing after another; from `with`, or the first question, to
    `close`. `deadline_s`: how long each thing is tried."""

    def __init__(self, deadline_s: float = READ_DEADLINE_S) -> None:
        self.deadline_s = deadline_s
        self._process: subprocess.Popen[bytes] | None = None
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Stores:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the agent."""
        with self._one_at_a_time:
            process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            process.kill()
            process.wait()

    def sizes(self, remote: Remote) -> dict[str, int]:
        """The bytes of all objects below a name, by what follows it."""
        return self._ask("sizes", remote, remote.url)

    def marks(self, remote: Remote) -> dict[str, tuple[int, str]]:
        """The same, with what the store says of each one's content."""
        said = self._ask("marks", remote, remote.url)
        return {name: (size, mark) for name, (size, mark) in said.items()}

    def read(self, remote: Remote, begin: int, end: int) -> bytes:
        """Bytes [begin, end) of an object; fewer where it ends before."""
        content = bytearray(end - begin)
        return bytes(content[: self.read_into(remote, begin, memoryview(content))])

    def read_into(self, remote: Remote, begin: int, data: memoryview) -> int:
        """Fills `data` from an object; the bytes read, fewer where it ends before."""
        return self._ask("read", remote, remote.url, begin, begin + len(data), into=data)

    def text(self, remote: Remote) -> str | None:
        """A small object's text; None where there is none."""
        return self._ask("text", remote, remote.url)

    def put(self, remote: Remote, text: str) -> None:
        """Writes an object, or replaces it."""
        self._ask("put", remote, remote.url, text)

    def create(self, remote: Remote, text: str) -> bool:
        """Writes an object where there was none; whether it is ours."""
        return self._ask("create", remote, remote.url, text)

    def put_file(self, path: Path, remote: Remote) -> None:
        """Writes a file's content to an object, or replaces it."""
        self._ask("put_file", remote, str(path.resolve()), remote.url)

    def get_file(self, remote: Remote, path: Path) -> None:
        """Writes an object's content to a file."""
        self._ask("get_file", remote, remote.url, str(path.resolve()))

    def delete(self, remotes: list[Remote]) -> None:
        """Removes objects; those that are gone already count as removed."""
        if remotes:
            self._ask("delete", remotes[0], [remote.url for remote in remotes])

    def _ask(
        self, name: str, remote: Remote, *arguments: Any, into: memoryview | None = None
    ) -> Any:
        question = [name, remote.url.partition(":")[0], self.deadline_s, arguments]
        with self._one_at_a_time:
            self._process = process = self._process or self._started()
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(json.dumps(question).encode() + b"\n")
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                if into is not None and "reply" in answer:
                    _fill(process.stdout, into[: answer["reply"]])
            except (OSError, ValueError) as error:
                raise StoreError(
                    "the process that asks the store has ended",
                    place=remote.url,
                    fix="see what it printed; start again with --resume",
                ) from error
        if "error" in answer:
            what, place, fix = answer["error"]
            raise StoreError(what, place=place, fix=fix)
        return answer["reply"]

    def _started(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "ratrain.objects.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )


def _fill(source: Any, data: memoryview) -> None:
    while len(data):
        count = source.readinto(data)
        if not count:
            raise OSError("the answer is cut")
        data = data[count:]


_of_process: list[Stores] = []


def stores() -> Stores:
    """Those that this process asks, until `close_stores`."""
    if not _of_process:
        _of_process.append(Stores())
    return _of_process[0]


def close_stores() -> None:
    """Ends this process's agent, where it has one; the next question starts another."""
    while _of_process:
        _of_process.pop().close()
