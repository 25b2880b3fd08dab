"""Device memory: written directly where a NIC reaches it, else through host buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fabric_here import why_no_fabric
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratrain.errors import BadTarget, SpecError
from ratrain.transport import Config, Engine
from ratrain.transport.memory.regions import DeviceSpan, address_of, bytes_of
from ratrain.transport.surface.staging import CudaAdapter, HostAdapter, Stage

Two = tuple[Engine, Engine]
SECRET = b"a secret of tests"


class FarMemory(HostAdapter):
    """RAM that only the adapter may touch, and a NIC that was opened for it."""

    kind = "system"

    def __init__(self) -> None:
        self.copies = 0

    def span(self, memory: Any) -> object:
        view = bytes_of(memory)
        return DeviceSpan(self.kind, address_of(view), view.nbytes, 0, memory)

    def copy_out(self, memory: Any, offset: int, buffer: Any, size_bytes: int) -> None:
        self.copies += 1
        super().copy_out(memory, offset, buffer, size_bytes)


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
    stage = Stage(a, FarMemory(), chunk, depth)
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
    stage = Stage(a, FarMemory(), 4096)
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


def test_host_memory_is_written_directly_over_every_provider(engines: Two) -> None:
    a, b = engines
    source, target = np.arange(3_000_001, dtype=np.uint8), np.zeros(3_000_001, np.uint8)
    stage = Stage(a, HostAdapter(), 4096)
    assert stage.write(source, b.register(target).descriptor(), imm=6) == source.size
    assert (target == source).all()
    assert b.counter(6).value == 1
    assert not stage._buffers


@pytest.fixture(params=["tcp;ofi_rxm", pytest.param("shm", marks=pytest.mark.slow)])
def near_and_far(request: pytest.FixtureRequest) -> Iterator[Two]:
    """Two engines whose NICs were opened for the memory of a device (RAM that no processor of
    theirs touches)."""
    if reason := why_no_fabric(request.param):
        pytest.skip(reason)
    options: dict[str, Any] = {"fabric": request.param, "devices": ("system",), "deadline_s": 10.0}
    config = Config(SECRET, providers=("ofi",), **options)
    with Engine(config) as a, Engine(config) as b:
        yield a, b


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 100_000, 9 << 20])
def test_device_memory_is_read_and_filled_by_the_nic_alone(near_and_far: Two, size: int) -> None:
    a, b = near_and_far
    source = np.random.default_rng(size).integers(1, 256, size, np.uint8)
    target = np.zeros(size + 8, np.uint8)
    adapter = FarMemory()
    place = b.register(adapter.span(target))
    stage = Stage(a, adapter)
    assert stage.write(source, place.descriptor()[4 : 4 + size], imm=8) == size
    assert (target[4 : 4 + size] == source).all()
    assert not target[:4].any() and not target[4 + size :].any()
    assert b.counter(8).value == 1
    assert adapter.copies == 0


def test_pages_and_host_memory_go_to_a_device_as_well(near_and_far: Two) -> None:
    a, b = near_and_far
    source, target = (
        np.arange(64 << 10, dtype=np.uint32).view(np.uint8),
        np.zeros(1 << 18, np.uint8),
    )
    place = b.register(FarMemory().span(target)).descriptor()
    order = np.random.default_rng(1).permutation(64)
    a.write_paged(a.register(source, remote=False), order, place, order[::-1], 4096, imm=9).wait()
    assert (target.reshape(64, -1)[order[::-1]] == source.reshape(64, -1)[order]).all()
    a.write(a.register(source, remote=False)[:9], place[3:12]).wait()
    assert (target[3:12] == source[:9]).all()


def test_device_memory_is_staged_where_the_provider_cannot_reach_it(engines: Two) -> None:
    a, b = engines
    source, target = np.arange(70_000, dtype=np.uint8), np.zeros(70_000, np.uint8)
    adapter = FarMemory()
    Stage(a, adapter, 10_000).write(source, b.register(target).descriptor(), imm=2)
    assert (target == source).all()
    assert adapter.copies == 7
    with pytest.raises(SpecError, match="no provider of this engine reaches memory on system"):
        a.register(adapter.span(source))


def test_what_a_connection_cannot_reach_is_refused_and_touched_by_nobody() -> None:
    if reason := why_no_fabric():
        pytest.skip(reason)
    both = Config(SECRET, "b", providers=("ofi", "sock"), devices=("system",), deadline_s=10.0)
    plain = Config(SECRET, "a", providers=("sock",), deadline_s=10.0)
    with Engine(both) as b, Engine(plain) as a:
        target = np.zeros(100_000, np.uint8)
        place = b.register(FarMemory().span(target)).descriptor()
        source = a.register(np.ones(100_000, np.uint8))
        for size in (9, 100_000):
            with pytest.raises(BadTarget, match="lies on a device"):
                a.write(source[:size], place[:size], imm=1).wait()
        with pytest.raises(BadTarget, match="does not reach memory on system"):
            b.write(b.register(FarMemory().span(target)), source.descriptor()).wait()
        assert not target.any()
        assert b.counter(1).value == 0


def test_a_write_that_cannot_be_reached_holds_up_none_behind_it() -> None:
    if reason := why_no_fabric():
        pytest.skip(reason)
    both = Config(SECRET, "b", providers=("ofi", "sock"), devices=("system",), deadline_s=10.0)
    plain = Config(SECRET, "a", providers=("sock",), deadline_s=10.0)
    with Engine(both) as b, Engine(plain) as a:
        target = a.register(np.zeros(100, np.uint8)).descriptor()
        far = b.write(b.register(FarMemory().span(np.ones(100, np.uint8))), target)
        near = b.write(b.register(np.ones(100, np.uint8)), target)  # both wait for the connection
        near.wait(5)
        with pytest.raises(BadTarget, match="does not reach"):
            far.wait()


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
    adapter = CudaAdapter()
    landing = adapter.buffer(adapter.size_bytes(source))
    place = b.register(landing)
    Stage(a, adapter, 1 << 20).write(source, place.descriptor(), imm=5)
    b.counter(5).wait(1, 5)
    target = torch.zeros_like(source)
    adapter.copy_in(landing, target, 0, adapter.size_bytes(target))
    assert torch.equal(source, target)


def test_without_a_cuda_device_the_adapter_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(SpecError, match="no CUDA device"):
        CudaAdapter()
