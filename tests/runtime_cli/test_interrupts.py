"""Ctrl-C is answered at once, also while C code computes, and in a terminal's own way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ratrain.compiled import library

EXAMPLES = Path(__file__).parents[2] / "examples"
TELLING = """
import signal, sys
from ratrain import compiled
from ratrain.cli.main import main

given = compiled.library

def library(*names):
    print("into C", file=sys.stderr, flush=True)
    return given(*names)

compiled.library = library
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
main()
"""
"""`ratrain` that tells when it is about to call its C code."""


@pytest.mark.slow
@pytest.mark.parametrize("core", ["walk_c", "engine_c"])
def test_ctrl_c_inside_c_code_ends_a_verb_at_once(core: str) -> None:
    room, verb = {"walk_c": ("program", "verify"), "engine_c": ("simulate", "simulate")}[core]
    if library(room, core) is None:
        pytest.skip("no C compiler was there")
    process = subprocess.Popen(
        [sys.executable, "-c", TELLING, verb, str(EXAMPLES / "qwen32b-mt3000.toml")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for _ in range(2 if verb == "simulate" else 1):
        assert process.stderr.readline() == "into C\n"
    time.sleep(0.01)
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    stderr = process.stderr.read()
    assert process.wait() == 130
    assert time.monotonic() - began_s < 5
    assert stderr.splitlines()[-1] == "interrupted" and "Traceback" not in stderr
