"""What waits of micro-batches: autograd's tensors come back as they left, and faults are said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ratrain.devices import CPU
from ratrain.errors import StorageError
from ratrain.runtime.step.below import DiskTier, HostTier, Tier
from ratrain.runtime.step.spilled import KeptTensors, Places
from ratrain.storage import TierStore


def places(tier: Tier, size_bytes: int, count: int = 2) -> Places:
    return Places.made("saved-0", tier, size_bytes, CPU, count)


def graph(seed: int) -> tuple[Tensor, Tensor, KeptTensors]:
    """A product of odd shapes of which autograd keeps windows on shared memory."""
    values = torch.Generator().manual_seed(seed)
    leaf = torch.randn(7, 30, generator=values).requires_grad_()
    kept = KeptTensors(leaf)
    with kept.taken():
        wide = leaf * 3.0
        first, second = wide[:, 1:14], wide[:, 14:27].bfloat16()
        output = ((first @ second.float().t()).exp() * first[:, :7]).sum()
    return leaf, output, kept


@pytest.mark.parametrize("name", ["host", "disk"])
@pytest.mark.parametrize("seed", range(4))
def test_a_backward_after_its_tensors_were_elsewhere_has_the_bits_of_one_whose_stayed(
    tmp_path: Path, name: str, seed: int
) -> None:
    store = TierStore(tmp_path, "run", 0)
    tier = HostTier(CPU) if name == "host" else DiskTier(store, CPU)
    leaf, output, kept = graph(seed)
    with_kept, usual, _ = graph(seed)
    size = kept.size_bytes
    assert size > 0
    of_unit = places(tier, size)
    via = torch.empty(-(-size // 4096) * 4096 + 4096, dtype=torch.uint8)
    via = via[-via.data_ptr() % 4096 :]
    of_unit.store((0, 0), size, kept.leave, via)
    assert kept.size_bytes == 0
    kept.return_in(of_unit.fetch((0, 0)))
    output.backward()
    usual.backward()
    assert leaf.grad is not None and with_kept.grad is not None
    assert torch.equal(leaf.grad, with_kept.grad)
    tier.close()
    store.close()


def test_a_file_that_was_cut_meanwhile_is_an_error_and_no_tensor(tmp_path: Path) -> None:
    store = TierStore(tmp_path, "run", 0)
    of_unit = places(DiskTier(store, CPU), 8192, 1)
    via = torch.zeros(8192 + 4096, dtype=torch.uint8)
    via = via[-via.data_ptr() % 4096 :][:8192]
    of_unit.store((3, 1), 8192, lambda _: None, via)
    (path,) = store.path.glob("saved-0*")
    with path.open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(StorageError, match="saved-0"):
        of_unit.fetch((3, 1))
    store.close()


def test_more_than_a_place_holds_is_refused() -> None:
    of_unit = places(HostTier(CPU), 100)
    with pytest.raises(StorageError, match="its place has 100"):
        of_unit.store((0, 0), 101, lambda _: None, None)
