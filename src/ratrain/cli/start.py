"""Where the command `ratrain` begins: Ctrl-C is answered before anything slow is imported."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """The command line. While it is being imported, Ctrl-C ends the process with one word."""
    answered = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else: ignored
    if answered:
        signal.signal(signal.SIGINT, lambda _number, _frame: _interrupted())
    from ratrain.cli.main import main as run

    if answered:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _interrupted() -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)
