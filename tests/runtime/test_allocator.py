"""What a process allocates: tensors are counted and limited, buffers of products counted apart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import ratrain, write_job

import ratrain as package
from ratrain.runtime.rank.preload import allocator_library

TENSOR_BYTES = 64 << 20
COUNTS = """
import ctypes, json, threading, torch
import numpy as np
from ratrain.runtime.step.allocator import Allocator
from ratrain.runtime.step.process import code_of

counts = Allocator()
assert counts.counts

def as_products(library):
    code = map(ctypes.c_size_t, code_of(library))
    ctypes.CDLL(None).ratrain_set_product_code(*code)

def seen():
    return [counts.held_bytes, counts.peak_bytes, counts.product_peak_bytes]
"""


def counted(script: str) -> list[list[int]]:
    """Runs it in a process with the library before its allocator; the JSON that it prints."""
    environment = os.environ | {"LD_PRELOAD": str(allocator_library()), "MKL_DISABLE_FAST_MM": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", COUNTS + script],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.slow
def test_a_product_takes_nothing_beside_its_tensors_that_counts_as_one() -> None:
    before, during, after = counted(
        """
left, right, product = torch.ones(512, 512), torch.ones(2048, 512), torch.empty(512, 2048)
torch.mm(left, right.t(), out=product)
counts.reset_peak()
before = seen()
torch.mm(left, right.t(), out=product)
torch.bmm(left.view(8, 64, 512), right.view(8, 256, 512).transpose(1, 2))
during = seen()
print(json.dumps([before, during, seen()]))
"""
    )
    assert before[0] == before[1] == after[0]
    assert during[1] - during[0] == pytest.approx(8 * 64 * 256 * 4, abs=1 << 14)  # bmm's result


@pytest.mark.slow
def test_blocks_of_the_code_that_makes_products_are_counted_apart_and_freed_apart() -> None:
    empty, held, freed, grown = counted(
        """
as_products(np._core._multiarray_umath.__file__.rpartition("/")[2])
empty = seen()
block = np.empty(3 << 20, np.uint8)
tensor = torch.empty(1 << 20, dtype=torch.uint8)
held = seen()
del block
freed = seen()
block = np.empty(2 << 20, np.uint8)
block.resize(5 << 20, refcheck=False)
del block, tensor
print(json.dumps([empty, held, freed, seen()]))
"""
    )
    assert held[0] - empty[0] == pytest.approx(1 << 20, abs=1 << 14)
    assert held[2] == pytest.approx(3 << 20, abs=1 << 14)
    assert freed[0] == held[0]
    assert grown[0] == pytest.approx(empty[0], abs=1 << 14)


@pytest.mark.slow
def test_the_limit_holds_tensors_and_not_products() -> None:
    ((beside_product, beyond_limit),) = counted(
        f"""
as_products(np._core._multiarray_umath.__file__.rpartition("/")[2])
counts.limit({TENSOR_BYTES})
def fits(allocate):
    try:
        return bool(allocate().nbytes)
    except (RuntimeError, MemoryError):
        return False
buffer = np.empty(2 * {TENSOR_BYTES}, np.uint8)
fitting = fits(lambda: torch.empty({TENSOR_BYTES} - (1 << 20), dtype=torch.uint8))
print(json.dumps([[fitting, fits(lambda: torch.empty({TENSOR_BYTES} + 1, dtype=torch.uint8))]]))
"""
    )
    assert (beside_product, beyond_limit) == (True, False)


@pytest.mark.slow
def test_many_threads_that_allocate_at_once_leave_nothing_counted() -> None:
    before, after = counted(
        """
as_products(np._core._multiarray_umath.__file__.rpartition("/")[2])
def work():
    for _ in range(300):
        blocks = [np.empty(20_000 + 4096 * each, np.uint8) for each in range(20)]
        tensors = [torch.empty(20_000) for _ in range(5)]
        del blocks, tensors
before = seen()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([before, seen()]))
"""
    )
    assert after[0] == pytest.approx(before[0], abs=1 << 18)
    assert 0 < after[2] < 8 * 20 * 110_000


@pytest.mark.slow
def test_a_checkout_in_a_folder_with_a_space_counts_too_and_one_without_the_library_says_so(
    tmp_path: Path,
) -> None:
    checkout = tmp_path / "two words" / "ratrain"
    shutil.copytree(Path(package.__file__).parent, checkout)
    (tmp_path / "job").mkdir()
    write_job(tmp_path / "job", steps=2)
    words = ("train", "job.toml", "--no-calibrate", "--run")

    def trained(run: str) -> tuple[str, list[int | None]]:
        ran = ratrain(tmp_path / "job", *words, run, PYTHONPATH=str(checkout.parent))
        assert ran.status == 0, ran.err
        row = json.loads((tmp_path / "job" / run / "metrics.jsonl").read_text().splitlines()[-1])
        return ran.out, [rank["allocated_peak_bytes"] for rank in row["ranks"]]

    said, allocated = trained("counted")
    assert all(allocated)
    assert "not counted" not in said
    assert "ld.so" not in (tmp_path / "job/counted/logs/rank-00000.log").read_text()
    for library in checkout.glob("runtime/step/allocator_c*.so"):
        library.unlink()
    said, allocated = trained("uncounted")
    assert allocated == [None, None]
    assert "what ranks allocated was not counted, and so was not held to the budget" in said
