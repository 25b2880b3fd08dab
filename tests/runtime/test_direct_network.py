"""Training over a communicator of torch.distributed, real processes with gloo: the bits of our own
connections, a lost rank named, and what is refused."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from crew import Crew, grid_routes, network_among
from deferred_runs import make_first, run_put_off
from launched import GRACE_S, killer, loss_bits, made, meanwhile, start, steps_done
from runs_made import Setting, Unlike, write_job
from test_survivors import REPLICAS, disturbed, notes
from training import train

from ratrain.errors import RunFailed, SpecError, TransportError
from ratrain.plan import load_job
from ratrain.program.kind import Lane
from ratrain.runtime.run.prepare import RunRequest, prepare_run
from ratrain.runtime.seats import Seats
from ratrain.runtime.step.network.communicator import require_nccl

SHORT = Setting(steps=3, sequences=4, timeout_s=30)
WIDE = (("num_key_value_heads", 4),)
TIED = (("tie_word_embeddings", True),)
BUCKETS = {"accumulation": "sharded", "skeleton": "1f1b", "bucket_bytes": 4000}
LAYOUTS = [(2, 1), (1, 2), (1, 4), (2, 2)]
MORE: dict[str, Setting] = {
    "bf16": replace(SHORT, dtype="bf16", data=4, clip_norm=0.5),
    "tied": replace(SHORT, pipeline=2, data=2, model=TIED),
    "buckets": replace(SHORT, pipeline=2, data=2, **BUCKETS),
    "sharded accumulation": replace(SHORT, pipeline=2, data=2, accumulation="sharded", sharding=3),
    "ring": replace(SHORT, data=4, devices_per_host=2, collective="ring"),
    "hierarchical": replace(SHORT, data=4, devices_per_host=2, collective="hierarchical"),
    "tensor group": replace(SHORT, name="1f1b", pipeline=2, model=WIDE, tensor=2),
    "zero-bubble": replace(SHORT, name="zb-h1", pipeline=2, data=2),
    "two stages a rank": replace(SHORT, name="interleaved", pipeline=2, virtual=2, data=2),
    "averages": replace(SHORT, name="1f1b", average_every=2, steps=4, pipeline=2, data=2),
    "mirror": replace(SHORT, pipeline=2, data=2, mirror=True),
    "error feedback": replace(SHORT, data=2, gradient_wire="bf16", error_feedback=True),
    "validation": replace(SHORT, pipeline=2, data=2, validate_every=1),
}

slow = pytest.mark.slow


def direct(setting: Setting) -> Setting:
    return replace(setting, network="direct")


@slow
@pytest.mark.parametrize("level", range(4))
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "p{}d{}".format(*layout))
def test_a_communicator_gives_the_bits_of_connections_at_every_level(
    layout: tuple[int, int], level: int, crew: Crew, tmp_path: Path
) -> None:
    setting = replace(SHORT, sharding=level).at(layout)
    over = train(crew, direct(setting), tmp_path / "direct")
    assert not over.differences(train(crew, setting, tmp_path / "sockets"))


@slow
@pytest.mark.matrix
@pytest.mark.parametrize("name", MORE)
def test_a_communicator_gives_the_bits_of_connections_beside_what_else_a_job_asks_for(
    name: str, crew: Crew, tmp_path: Path
) -> None:
    over = train(crew, direct(MORE[name]), tmp_path / "direct")
    plain = train(crew, MORE[name], tmp_path / "sockets")
    assert not over.differences(plain)
    assert over.validated == plain.validated
    assert over.sent_bytes, "what a communicator sends is counted"


@slow
def test_lanes_that_are_late_change_no_bit_of_what_a_communicator_brings(
    crew: Crew, tmp_path: Path
) -> None:
    setting = replace(SHORT, pipeline=2, data=2)
    results = [train(crew, direct(setting), tmp_path / str(seed), delays=seed) for seed in range(3)]
    for result in results[1:]:
        assert not result.differences(results[0])


@slow
@pytest.mark.timeout(300)
def test_no_order_is_missing_on_a_device_that_a_communicator_serves(tmp_path: Path) -> None:
    with Crew(4) as putting_off:
        putting_off.ask(4, make_first)
        for level in (0, 2, 3):
            setting = replace(SHORT, pipeline=2, data=2, sharding=level, clip_norm=0.5)
            over, plain = (
                run_put_off(putting_off, each, tmp_path / f"{number}-{level}", level)
                for number, each in enumerate((direct(setting), setting))
            )
            assert not over.differences(plain), level


@slow
@pytest.mark.timeout(300)
def test_a_killed_rank_is_named_and_the_run_goes_on_over_a_new_communicator(tmp_path: Path) -> None:
    setting = Setting(pipeline=2, data=2, steps=30, every=4, network="direct")
    folder, whole = made(tmp_path / "killed", setting), made(tmp_path / "whole", setting)
    start(whole)
    killed: list[float] = []
    with (
        pytest.raises(RunFailed) as failed,
        meanwhile(killer(folder, 2, lambda: steps_done(folder) >= 7), killed),
    ):
        start(folder)
    assert time.monotonic() - killed[0] < GRACE_S
    assert failed.value.what.startswith("rank 2 was killed by SIGKILL"), failed.value
    start(folder)
    assert loss_bits(folder) == loss_bits(whole)


@pytest.mark.parametrize(
    ("key", "value"), [("tls", '"secret"'), ("share_gpu", "true")], ids=["tls", "share_gpu"]
)
def test_what_a_communicator_cannot_have_is_refused(key: str, value: str, tmp_path: Path) -> None:
    job = write_job(tmp_path, direct(SHORT))
    with pytest.raises(SpecError) as refused:
        load_job(job, (f"train.{key}={value}",))
    assert "[train] network" in refused.value.place
    assert f"leave {key} out" in refused.value.fix


def test_ranks_of_several_kinds_of_device_have_no_communicator(tmp_path: Path) -> None:
    job = write_job(tmp_path, replace(direct(SHORT), data=2, old=(1,), files=("none.txt",)))
    cluster = tmp_path / "cluster.toml"
    text = cluster.read_text()
    assert text.count('name = "old"') == 1
    cluster.write_text(text.replace('name = "old"\n', 'name = "old"\nruns_on = "deferred"\n'))
    with pytest.raises(SpecError, match="cpu, deferred") as refused:
        prepare_run(RunRequest(job, threads=1, calibrate=False))
    assert "[train] network" in refused.value.place
    assert 'network = "sockets"' in refused.value.fix


@slow
def test_messages_in_parts_between_tensor_degrees_go_over_a_communicator(
    crew: Crew, tmp_path: Path
) -> None:
    unlike = (Unlike((1, 3), 4, tensor=(2, 1)),)
    setting = replace(SHORT, name="1f1b", model=WIDE, unlike=unlike)
    over = train(crew, direct(setting), tmp_path / "direct")
    assert not over.differences(train(crew, setting, tmp_path / "sockets"))


def disagreeing(rank: int, _world: int) -> tuple[str, float]:
    """What two ranks hear that mean tensors of other lengths, and after how long."""
    seats = Seats(2, 1, (0,), (0,))
    network = network_among(seats, seats.seat(rank), grid_routes(seats), "direct")
    began_s = time.monotonic()
    try:
        if rank:
            network.receive(Lane.RECV_F, torch.empty(12), 0)
        else:
            network.send(Lane.SEND_F, torch.ones(10), 1)
    except TransportError as error:
        network.hang_up()
        return error.what, time.monotonic() - began_s
    return "", 0.0


@slow
def test_ranks_that_mean_other_lengths_or_leave_are_named_in_seconds(crew: Crew) -> None:
    (left, left_s), (meant, _) = crew.ask(2, disagreeing)
    assert meant == "rank 0 sends rank 1 40 bytes where 48 were expected"
    assert left.startswith("rank 0 lost its communicator with rank 1 (send_f)"), left
    assert left_s < 5


@pytest.mark.skipif(dist.is_nccl_available(), reason="this build of torch has NCCL")
def test_a_build_of_torch_without_nccl_is_refused() -> None:
    with pytest.raises(SpecError, match="has no NCCL") as refused:
        require_nccl()
    assert refused.value.place == "[train] network"


@slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rank", [0, 2])
def test_survivors_of_a_lost_rank_make_another_communicator_and_lose_no_step(
    rank: int, tmp_path: Path
) -> None:
    setting = direct(replace(REPLICAS, steps=20))
    folder, whole = made(tmp_path / "disturbed", setting), made(tmp_path / "whole", setting)
    start(whole)
    disturbed(folder, rank, step=8)
    assert "from what the survivors hold" in notes(folder)
    assert loss_bits(folder) == loss_bits(whole)
