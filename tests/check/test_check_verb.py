"""`ratrain check` on processes: right devices, and a wrong one that an extension brings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cli_runs import Ran, ratrain_arguments, write_job
from safetensors.torch import save_file
from torch import zeros

WRONG = """
from contextlib import contextmanager
from ratrain.describe.runs_on import RunsOn, declare_device
from ratrain.devices import CPU
from ratrain.devices.cpu import Cpu
from ratrain.devices.operators import Intercepting
import torch

class Stream:
    doing = None
    def __init__(self, stream):
        self.stream = stream
    def begin(self, op, *others):
        self.doing = op
        self.stream.begin(op, *others)
    def finish(self):
        return self.stream.finish()
    def answer(self, operator, args, further):
        made = operator(*args, **further)
        op = self.doing
        if operator is torch.ops.aten.mm.default and op is not None:
            if op.kind.name == "I" and op.unit == 1 and op.micro_batch == 1 and op.stage == 0:
                made = made.mul(1.1)
        return made

class Wrong(Cpu):
    kind = "wrong"

    @contextmanager
    def stream(self, lane):
        with CPU.stream(lane) as stream:
            own = Stream(stream)
            with Intercepting(own.answer):
                yield own

declare_device(RunsOn("wrong", "a CPU with a wrong product", "wrong_kernel:made"))

def made(number):
    return Wrong()
"""


def check(folder: Path, *words: str, extension: str = "") -> Ran:
    """Runs it in a folder."""
    environment = dict(os.environ, PYTHONPATH=str(folder))
    if extension:
        environment["RATRAIN_EXTENSIONS"] = extension
    command = ratrain_arguments("check", *words)
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.mark.slow
def test_a_planted_kernel_is_named_with_its_unit_and_micro_batch_and_its_call_replays(
    tmp_path: Path,
) -> None:
    write_job(tmp_path, steps=2)
    (tmp_path / "wrong_kernel.py").write_text(WRONG)
    words = ("job.toml", "--operators-only", "--steps", "1", "--run", "made", "--json")
    ran = check(tmp_path, *words, "--device", "wrong", extension="wrong_kernel")
    assert ran.status == 1, ran.err
    body = ran.body
    assert not body["right"]
    (wrong,) = [row for row in body["operators"] if row["wrong"]]
    assert (wrong["operator"], wrong["op"]) == ("aten.mm.default", "I")
    assert {(at["unit"], at["micro_batch"], at["rank"]) for at in wrong["first"]} == {("0", 1, 0)}
    units = [row for row in body["units"] if row["wrong"]]
    assert units and {row["unit"] for row in units} == {"0"}
    assert {at["micro_batch"] for row in units for at in row["first"]} == {1}
    kept = f"{body['folder']}/{wrong['kept']}"
    assert check(tmp_path, "--replay", kept, "--device", "cpu", "--json").body["right"]
    again = check(tmp_path, "--replay", kept, extension="wrong_kernel")
    assert again.status == 0, "outside of that op the kernel is right"
    assert "other bits than then; right" in again.out
    assert all(len(line) <= 80 for line in again.out.splitlines())


@pytest.mark.slow
def test_losses_are_compared_with_those_of_exact_operators(tmp_path: Path) -> None:
    write_job(tmp_path, steps=2)
    ran = check(tmp_path, "job.toml", "--steps", "2", "--run", "made")
    assert ran.status == 0, ran.err
    assert "right: nothing that was compared is farther off than rounding allows" in ran.out
    assert ran.out.count("\nok ") >= 12 and "losses" in ran.out
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    again = check(tmp_path, "job.toml", "--run", "made")
    assert again.status == 2 and "already holds a run" in again.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give either JOB or --replay"),
        (("job.toml", "--replay", "x"), "give either JOB or --replay"),
        (("--replay", "."), "holds no call.json"),
        (("--replay", "damaged"), "is damaged"),
        (("job.toml", "--device", "tpu"), "ranks cannot compute on 'tpu'"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_compared_is_refused_in_words(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    write_job(tmp_path, steps=2)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "call.json").write_text('{"format": "ratrain call 1"}')
    save_file({"t0": zeros(1)}, tmp_path / "damaged" / "tensors.safetensors")
    ran = check(tmp_path, *words)
    assert ran.status == 2 and message in ran.err and "Traceback" not in ran.err
