"""The device that finds missing order: its own behaviour, on one process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from ratrain.devices import Device, Mark, device_of_kind
from ratrain.devices.deferred import Deferred, register
from ratrain.errors import MissingOrder
from ratrain.runtime.step.held import HeldStates

register()  # ahead of any backward of this process, which starts autograd's threads
PLACE = torch.device("deferred", 0)


class Op:
    """An op that declares nothing but its word."""

    def __init__(self, word: str, uses: Iterable[tuple[int, bool]] = ()) -> None:
        self.word, self.uses = word, tuple(uses)


def on_lane(
    device: Deferred, lane: str, op: Op, work: Callable[[], object], after: Iterable[Mark] = ()
) -> Mark:
    """An op on a lane, whose thread ends with it; its end."""
    ends: list[Mark] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            with device.stream(lane) as stream:
                stream.begin(op, 0, lambda: after, lambda number: f"state {number}")
                work()
                ends.append(stream.finish())
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return ends[0]


@pytest.fixture(params=range(3))
def device(request: pytest.FixtureRequest) -> Deferred:
    return Deferred(seed=request.param)


# ---- what it computes -----------------------------------------------------------------------


def test_it_is_a_kind_of_device() -> None:
    device: Device = device_of_kind("deferred")
    assert device.kind == "deferred" and "missing order" in device.words


@pytest.mark.usefixtures("device")
def test_operators_have_the_bits_of_the_cpu_forward_and_back() -> None:
    weights, given = torch.randn(24, 16), torch.randn(4, 6, 16)

    def computed(weights: Tensor, given: Tensor) -> list[Tensor]:
        weights, given = weights.clone().requires_grad_(), given.clone().requires_grad_()
        hidden = torch.nn.functional.gelu(given @ weights.t())[:, 1:].transpose(1, 2)
        loss = torch.logsumexp(hidden.reshape(-1, 5), dim=1).pow(2).mean()
        loss.backward()
        assert weights.grad is not None and given.grad is not None
        return [loss.detach(), weights.grad, given.grad]

    here = computed(weights, given)
    there = computed(weights.to(PLACE), given.to(PLACE))
    for mine, theirs in zip(there, here, strict=True):
        assert mine.device == PLACE
        assert torch.equal(mine.cpu(), theirs)


@pytest.mark.usefixtures("device")
def test_an_operator_is_not_done_until_somebody_waits() -> None:
    made = torch.ones(4).to(PLACE) + 1
    assert made.memory.isnan().all()  # type: ignore[attr-defined]
    assert made.cpu().tolist() == [2.0] * 4


def test_new_and_freed_memory_is_nan(device: Deferred) -> None:
    assert torch.empty(8, device=PLACE).cpu().isnan().all()
    made = torch.ones(64, device=PLACE)
    device.finish()
    behind = made.memory  # type: ignore[attr-defined]
    assert behind.eq(1).all()
    del made
    device.finish()
    assert behind.isnan().all()


@pytest.mark.usefixtures("device")
def test_a_tensor_of_the_host_is_refused_as_on_a_gpu() -> None:
    with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
        torch.add(torch.ones(4, device=PLACE), torch.ones(4))
    with pytest.raises(TypeError, match="copy it to host memory"):
        torch.ones(4, device=PLACE).numpy()


@pytest.mark.usefixtures("device")
def test_host_memory_is_read_when_it_is_copied() -> None:
    source = torch.ones(4)
    moved = source.to(PLACE)
    source.zero_()
    assert moved.cpu().tolist() == [1.0] * 4


@pytest.mark.usefixtures("device")
def test_what_is_sized_by_values_is_waited_for() -> None:
    values = torch.arange(6.0).to(PLACE)
    assert values[values > 2].cpu().tolist() == [3.0, 4.0, 5.0]
    assert bool((values > 4).any()) and not bool((values > 5).any())


def test_memory_is_counted_and_limited(device: Deferred) -> None:
    memory = device.own_memory
    memory.reset_peak()
    before = memory.held_bytes
    kept = torch.zeros(1000, device=PLACE)
    again = kept + kept
    assert memory.held_bytes - before == 2 * 4032
    del again
    assert memory.held_bytes - before == 4032 and memory.peak_bytes - before == 2 * 4032
    memory.limit(memory.held_bytes + 4096)
    with pytest.raises(torch.OutOfMemoryError, match="the limit is"):
        torch.zeros(2000, device=PLACE)


def test_an_operator_that_fails_later_names_its_op(device: Deferred) -> None:
    table, rows = torch.ones(3, 2, device=PLACE), torch.tensor([7]).to(PLACE)

    def work() -> None:
        torch.nn.functional.embedding(rows, table)

    with pytest.raises(IndexError) as failed:
        on_lane(device, "compute", Op("0F0"), work)
    assert "in 0F0 of step 1, on lane compute" in failed.value.__notes__


# ---- what it finds --------------------------------------------------------------------------


def test_two_lanes_that_nothing_orders_are_named(device: Deferred) -> None:
    gradient = torch.zeros(64, device=PLACE)
    device.name(gradient, "gradient of layer 3")
    on_lane(device, "compute", Op("0.3B1"), lambda: gradient.add_(1))
    with pytest.raises(MissingOrder) as found:
        on_lane(device, "reduce", Op("0.3GradSync"), lambda: gradient * 2)
    told = str(found.value)
    assert "gradient of layer 3" in told
    assert "0.3B1 of step 1 writes it (aten.add_.Tensor), on lane compute" in told
    assert "0.3GradSync of step 1 reads it (aten.mul.Tensor), on lane reduce" in told


def test_an_op_that_waits_for_the_other_is_in_order(device: Deferred) -> None:
    gradient = torch.zeros(64, device=PLACE)
    end = on_lane(device, "compute", Op("0.3B1"), lambda: gradient.add_(1))
    on_lane(device, "reduce", Op("0.3GradSync"), lambda: gradient * 2, [end])


def test_order_is_passed_on_by_a_third_lane(device: Deferred) -> None:
    gradient = torch.zeros(64, device=PLACE)
    first = on_lane(device, "compute", Op("first"), lambda: gradient.add_(1))
    second = on_lane(device, "update", Op("second"), lambda: None, [first])
    on_lane(device, "reduce", Op("third"), lambda: gradient.add_(1), [second])


def test_lanes_that_only_read_or_are_in_other_bytes_need_no_order(device: Deferred) -> None:
    shared = torch.zeros(64, device=PLACE)
    on_lane(device, "compute", Op("reads"), lambda: shared * 2)
    on_lane(device, "reduce", Op("reads too"), lambda: shared * 3)
    parts = torch.zeros(64, device=PLACE)
    on_lane(device, "compute", Op("writes"), lambda: parts[:32].add_(1))
    on_lane(device, "reduce", Op("writes elsewhere"), lambda: parts[32:].add_(1))


def test_states_that_ops_declare_need_order_too(device: Deferred) -> None:
    on_lane(device, "update", Op("ClipNorm", [(5, True)]), lambda: None)
    with pytest.raises(MissingOrder, match="state 5: ClipNorm of step 1 writes it, on lane update"):
        on_lane(device, "compute", Op("0F0", [(5, False)]), lambda: None)


def test_memory_that_another_lane_still_uses_is_not_freed(device: Deferred) -> None:
    held = [torch.zeros(64, device=PLACE)]
    device.name(held[0], "output of layer 3")
    on_lane(device, "send_f", Op("SEND_F0"), lambda: held[0] * 2)
    with pytest.raises(MissingOrder) as found:
        on_lane(device, "compute", Op("0F1"), held.clear)
    told = str(found.value)
    assert "output of layer 3" in told and "0F1 of step 1 frees it, on lane compute" in told
    assert "SEND_F0 of step 1 reads it" in told


def test_memory_is_freed_behind_who_used_it(device: Deferred) -> None:
    held = [torch.zeros(64, device=PLACE)]
    end = on_lane(device, "send_f", Op("SEND_F0"), lambda: held[0] * 2)
    on_lane(device, "compute", Op("0F1"), held.clear, [end])


def test_memory_that_an_op_frees_while_its_own_lane_uses_it_goes_back_to_that_lane(
    device: Deferred,
) -> None:
    """As in CUDA's allocator: what the lane does next in it comes behind."""
    for _ in range(20):
        on_lane(device, "compute", Op("0F0"), lambda: (torch.ones(64, device=PLACE) + 1).add_(1))


def test_a_state_that_no_op_has_made_is_named() -> None:
    class Reads:
        word = "0.2B1"
        reads: ClassVar = {"saved": ("saved", 4)}

    with pytest.raises(MissingOrder, match=r"0\.2B1 reads saved, which no op has made yet"):
        HeldStates().read(Reads(), "saved")  # type: ignore[arg-type]


# ---- where it cannot be ---------------------------------------------------------------------


def refused(before: str) -> str:
    """What a process says that makes the device behind these lines."""
    code = f"""
import torch
{before}
from ratrain.devices import device_of_kind
from ratrain.errors import SpecError
try:
    device_of_kind("deferred")
except SpecError as error:
    print(error)
"""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.slow
def test_a_torch_that_cannot_have_it_is_named_with_the_way_out() -> None:
    told = refused(
        "import torch.utils.backend_registration as b\n"
        "del b._setup_privateuseone_for_python_backend"
    )
    assert f"torch {torch.__version__} cannot have a device that is written in Python" in told
    assert "--device cpu" in told


@pytest.mark.slow
def test_a_process_that_went_backward_before_is_told_so() -> None:
    told = refused("torch.ones(2, requires_grad=True).sum().backward()")
    assert "before this process' first backward" in told
