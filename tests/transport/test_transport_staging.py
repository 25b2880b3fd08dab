"""Device memory written through host buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratrain.errors import BadTarget, SpecError
from ratrain.transport import Engine
from ratrain.transport.staging import CudaCopier, HostCopier, Stage

Two = tuple[Engine, Engine]


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    size=st.integers(0, 200_000),
    chunk=st.sampled_from([1000, 4096, 65_536]),
    depth=st.integers(1, 4),
)
def test_staged_bytes_are_exact_and_counted_once_for_every_size_chunk_and_depth(
    engines: Two, size: int, chunk: int, depth: int
) -> None:
    a, b = engines
    source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    target = np.zeros(size + 1, np.uint8)
    region = b.register(target)
    stage = Stage(a, HostCopier(), chunk, depth)
    assert stage.write(source, region.descriptor(), imm=3) == size
    b.counter(3).wait(1, 5)
    assert b.counter(3).value == 0
    assert (target[:size] == source).all()
    assert target[size] == 0
    stage.close()
    b.revoke(region)


def test_a_revoked_target_fails_the_staged_write_and_the_stage_can_be_used_again(
    engines: Two,
) -> None:
    a, b = engines
    source, target = np.ones(100_000, np.uint8), np.zeros(100_000, np.uint8)
    stage = Stage(a, HostCopier(), 4096)
    gone = b.register(target, own_key=True)
    b.revoke(gone)
    with pytest.raises(BadTarget):
        stage.write(source, gone.descriptor(), imm=4)
    with pytest.raises(BadTarget, match="do not fit"):
        stage.write(source, b.register(target).descriptor()[:99], imm=4)
    assert b.counter(4).value == 0
    assert stage.write(source, b.register(target).descriptor(), imm=4) == 100_000
    assert b.counter(4).value == 1
    assert target.all()


def cuda() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch


@pytest.mark.gpu
def test_a_cuda_tensor_goes_to_a_peer_and_into_its_device_memory(engines: Two) -> None:
    torch = cuda()
    a, b = engines
    source = torch.randn(3_000_001, device="cuda", dtype=torch.float32)
    copier = CudaCopier()
    landing = copier.buffer(copier.size_bytes(source))
    place = b.register(landing)
    Stage(a, copier, 1 << 20).write(source, place.descriptor(), imm=5)
    b.counter(5).wait(1, 5)
    target = torch.zeros_like(source)
    copier.copy_in(landing, target, 0, copier.size_bytes(target))
    assert torch.equal(source, target)


def test_without_a_cuda_device_the_copier_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(SpecError, match="no CUDA device"):
        CudaCopier()
