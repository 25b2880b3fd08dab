"""The process that asks object stores for another one: `python -m ratrain.objects.agent`.

A request is a line of JSON on standard input, [`Bucket` method, scheme, seconds, arguments]; so is
the answer on standard output, behind which come the bytes of an object where bytes were asked for.
It ends with standard input, or with the process that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ratrain.errors import StoreError
from ratrain.objects.bucket import Bucket

_LOOK_S = 0.5


def main() -> None:
    """Answers until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # who asks decides what is still to be asked
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    answers = sys.stdout.buffer
    sys.stdout = sys.stderr
    buckets: dict[str, Bucket] = {}
    for line in sys.stdin.buffer:
        name, scheme, deadline_s, arguments = json.loads(line)
        content = b""
        try:
            bucket = buckets.setdefault(scheme, Bucket(scheme))
            bucket.deadline_s = deadline_s
            reply = _answer(bucket, name, arguments)
            if isinstance(reply, bytes):
                content, reply = reply, len(reply)
            answer: dict[str, Any] = {"reply": reply}
        except StoreError as error:
            answer = {"error": [error.what, error.place, error.fix]}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.write(content)
        answers.flush()


def _answer(bucket: Bucket, name: str, arguments: list[Any]) -> Any:
    if name in ("put", "create"):
        return getattr(bucket, name)(arguments[0], arguments[1].encode())
    if name == "put_file":
        return bucket.put_file(Path(arguments[0]), arguments[1])
    if name == "get_file":
        return bucket.get_file(arguments[0], Path(arguments[1]))
    return getattr(bucket, name)(*arguments)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
