"""The first moments of the command `ratrain`, and streams that are not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SMALL = Path(__file__).parents[2] / "examples" / "small.toml"
WHILE_IMPORTING = """\
import os, signal, sys

class Pressed:
    def find_spec(self, name, path, target=None):
        if name == "ratrain.plugins":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.{handler})
sys.meta_path.insert(0, Pressed())
sys.argv[0] = "ratrain"
from ratrain.cli.start import main
main()
"""
START = "import sys; sys.argv[0] = 'ratrain'; from ratrain.cli.start import main; main()"


def pressed(handler: str) -> subprocess.CompletedProcess[str]:
    """`ratrain models`, with Ctrl-C in the middle of its imports."""
    return subprocess.run(
        [sys.executable, "-c", WHILE_IMPORTING.format(handler=handler), "models"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_ctrl_c_while_it_is_imported_ends_it_with_one_word() -> None:
    done = pressed("default_int_handler")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_where_ctrl_c_is_ignored_it_stays_ignored() -> None:
    done = pressed("SIG_IGN")
    assert done.returncode == 0 and "llama-2-7b" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize(("file", "status"), [(SMALL, 0), (Path("missing.toml"), 2)])
def test_a_closed_stream_changes_neither_status_nor_what_the_others_say(
    closed: str, file: Path, status: int
) -> None:
    command = f"'{sys.executable}' -c \"{START}\" verify '{file}' "
    whole, done = (
        subprocess.run(
            ["bash", "-c", command + redirected], capture_output=True, text=True, check=False
        )
        for redirected in ("", closed)
    )
    assert done.returncode == whole.returncode == status
    assert done.stdout == ("" if closed.startswith(">") else whole.stdout)
    assert done.stderr == ("" if "2>" in closed else whole.stderr)
