"""The machine measured: real products, real sockets, a file that loads."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratrain.cli.measuring.profile import command
from ratrain.cost.measured import measured as measured_time
from ratrain.describe.layer_profile import LayerProfile, MeasuredTime, shape_of
from ratrain.describe.presets import load_cluster, model_preset
from ratrain.errors import SpecError
from ratrain.profile import machine
from ratrain.profile.attention import AttentionTime, attention_times
from ratrain.profile.clock import timing
from ratrain.profile.cluster_file import cluster_toml
from ratrain.profile.doubt import Doubt, ProcessorTimes, Watch, others_share, reason
from ratrain.profile.layers import LayersAsked, LayersTimed, layer_figure, layer_profiles
from ratrain.profile.links import SIZES_BYTES, MessageTime, latency_and_bandwidth, message_times
from ratrain.profile.machine import MachineProfile, implausible
from ratrain.profile.products import ProductTime, gpu_present, launch_s, torch_installed


def test_messages_between_two_processes_are_measured_at_every_size() -> None:
    times = message_times(Watch())
    assert tuple(t.size_bytes for t in times) == SIZES_BYTES
    assert times[-1].time_s > times[0].time_s > 0


def test_latency_and_bandwidth_are_found_again() -> None:
    made = [MessageTime(size, 10e-6 + size / 2e9) for size in SIZES_BYTES]
    latency_s, bandwidth = latency_and_bandwidth(made)
    assert abs(latency_s - 10e-6) < 1e-8
    assert abs(bandwidth / 2e9 - 1) < 1e-6


def test_a_falling_line_through_the_messages_gives_no_negative_bandwidth() -> None:
    disturbed = [MessageTime(size, 1 / size) for size in SIZES_BYTES]
    _, bandwidth = latency_and_bandwidth(disturbed)
    assert bandwidth == pytest.approx(SIZES_BYTES[-1] ** 2)


def test_starting_an_operator_takes_less_than_a_millisecond() -> None:
    assert 0 < launch_s(Watch()) < 1e-3


def test_the_written_file_is_a_cluster_with_the_measured_figures(tmp_path: Path) -> None:
    product = ProductTime("numpy", "cpu", "fp32", 1000, 1000, 1000, 0.02)
    profile = MachineProfile(
        name="cpu",
        products=(product,),
        launch_s=1e-6,
        memory_bytes_per_s=8e9,
        capacity_bytes=16_000_000_000,
        device_copy_bytes_per_s=None,
        messages=(MessageTime(1, 1e-5),),
        latency_s=1e-5,
        bandwidth_bytes_per_s=2e9,
        disk_free_bytes=5_000_000_000,
        disk_write_bytes_per_s=1e8,
        disk_read_bytes_per_s=1e9,
        missing=("a GPU: none",),
    )
    path = tmp_path / "this.toml"
    path.write_text(cluster_toml(profile), encoding="utf-8")
    device = load_cluster(path).device[0]
    assert device.flops_rate("fp32") == 1e11
    assert device.memory.bandwidth_bytes_per_s == 8e9
    assert load_cluster(path).links["room"].latency_s == 1e-5
    assert "# not measured: a GPU: none" in path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_attention_is_measured_in_both_directions_where_torch_is() -> None:
    if not torch_installed():
        assert not list(attention_times(Watch()))
        return
    time = next(iter(attention_times(Watch())))
    assert time.forward_s > 0
    assert time.backward_s > 0
    assert time.flops_rate == pytest.approx(
        6 * time.sequences * time.heads * time.tokens**2 * time.head_dim
        / (time.forward_s + time.backward_s)
    )  # fmt: skip


def measured(**changes: object) -> MachineProfile:
    """A machine of 100 GFLOP/s that attends at 60."""
    figures: dict[str, object] = {
        "name": "cpu",
        "products": (ProductTime("numpy", "cpu", "fp32", 1000, 1000, 1000, 0.02),),
        "launch_s": 1e-6,
        "memory_bytes_per_s": 8e9,
        "capacity_bytes": 16_000_000_000,
        "device_copy_bytes_per_s": None,
        "messages": (MessageTime(1, 1e-5),),
        "latency_s": 1e-5,
        "bandwidth_bytes_per_s": 2e9,
        "disk_free_bytes": 5_000_000_000,
        "disk_write_bytes_per_s": 1e8,
        "disk_read_bytes_per_s": 1e9,
        "missing": (),
        "attention": (AttentionTime("cpu", "fp32", 1, 1, 1000, 100, 0.002, 0.008),),
    }
    return MachineProfile(**{**figures, **changes})  # pyright: ignore[reportArgumentType]


CLUSTER = """
name = "two"
source = "test"
[[device]]
name = "measured"
profile = "machines/this.toml"
launch = "5us"
[[host]]
name = "a"
device = "measured"
devices = 1
count = 2
[links.room]
latency = "1us"
bandwidth = "1GB/s"
source = "test"
"""


def test_a_device_takes_from_its_profile_what_it_does_not_say_itself(tmp_path: Path) -> None:
    (tmp_path / "machines").mkdir()
    (tmp_path / "machines" / "this.toml").write_text(cluster_toml(measured()))
    (tmp_path / "two.toml").write_text(CLUSTER)
    (device,) = load_cluster(tmp_path / "two.toml").device
    assert (device.name, device.launch_s) == ("measured", 5e-6)
    assert device.flops_rate("fp32") == 1e11
    assert device.flops_rate("fp32", "attention") == pytest.approx(6e10)
    assert [tier.name for tier in device.tiers] == ["RAM", "disk"]


@pytest.mark.parametrize(
    ("named", "written", "says"),
    [
        ('"other.toml"', "", "there is no file"),
        ('"this.toml"', "name = 'x'", "does not describe exactly one device"),
        ('"this.toml"', "[[device]]\nprofile = 'this.toml'", "refers to another profile"),
        ('"this.toml"', "device = [1]", "1 is not a table"),
        ('"this.toml"', "not toml", "not valid TOML"),
        ('"this.toml"', "[[device]]\nname = 'x'\nspeed = 3", "unknown key"),
        ("3", "", "not a file name"),
    ],
)
def test_a_wrong_profile_is_one_error_with_its_place(
    tmp_path: Path, named: str, written: str, says: str
) -> None:
    (tmp_path / "this.toml").write_text(written)
    (tmp_path / "two.toml").write_text(CLUSTER.replace('"machines/this.toml"', named))
    with pytest.raises(SpecError) as caught:
        load_cluster(tmp_path / "two.toml")
    assert says in str(caught.value)
    assert ".toml" in caught.value.place
    assert caught.value.fix or says == "not valid TOML"


def test_asking_for_torch_does_not_import_it() -> None:
    import sys

    before = "torch" in sys.modules
    torch_installed()
    assert ("torch" in sys.modules) == before


TINY = model_preset("tiny-llama")


@pytest.mark.slow
@pytest.mark.skipif(not torch_installed(), reason="layers are timed in torch")
def test_a_model_s_layers_are_timed_and_read_back_from_the_written_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratrain.profile.layers.WITHIN_S", 0.0)
    timed = layer_profiles(LayersAsked(TINY, 32, (1, 2), tensor=2))
    entries = timed.entries
    assert [entry.block for entry in entries] == ["layer", "embedding", "head"]
    path = tmp_path / "this.toml"
    path.write_text(cluster_toml(measured(layers=entries)))
    (device,) = load_cluster(path).device
    assert device.layer_profile[0].shape == shape_of(TINY, "layer")
    for entry in entries:
        time = measured_time(device, entry.case, 2, TINY.name)
        assert time is not None
        assert time.how == "measured"
        assert time.forward_s > 0


def test_messages_measured_by_size_are_written_as_the_link_s_bandwidth(tmp_path: Path) -> None:
    slow = (MessageTime(1, 1e-5), MessageTime(1 << 20, 2e-3), MessageTime(1 << 25, 1.7e-2))
    path = tmp_path / "this.toml"
    path.write_text(cluster_toml(measured(messages=slow)))
    link = load_cluster(path).links["room"]
    for doubtful in slow[1:]:
        time_s = link.latency_s + link.size_s(doubtful.size_bytes) + doubtful.size_bytes / 2e9
        assert time_s == pytest.approx(doubtful.time_s, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--layers", "tiny-lama"], "tiny-llama"),
        (["--layers", "tiny-llama", "--micro-batch", "1,x"], "write it as 1,2,4"),
        (["--layers", "tiny-llama", "--tensor", "3"], "cannot share evenly"),
        (["--layers", "megatron-15b"], "not trained"),
        (["--device", "cuda"], "no CUDA device"),
    ],
)
def test_a_wrong_request_for_layers_is_one_error_before_anything_is_measured(
    arguments: list[str], says: str
) -> None:
    if says == "no CUDA device" and gpu_present():
        pytest.skip("there is a GPU")
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, SpecError)
    assert says in str(result.exception)


@pytest.mark.parametrize("option", ["--sequence", "--tensor"])
def test_a_number_of_layers_out_of_bounds_names_its_option(option: str) -> None:
    result = CliRunner().invoke(command, ["--layers", "tiny-llama", option, "0"])
    assert result.exit_code == 2 and option in result.output


# ---- doubt ------------------------------------------------------------------------------


def test_a_figure_is_timed_in_three_blocks_of_at_least_one_call() -> None:
    calls: list[int] = []
    timed = timing(lambda: calls.append(1), least=3, within_s=0.0)
    assert len(timed.blocks_s) == 3
    assert len(calls) == 4  # one to warm up
    assert min(timed.blocks_s) <= timed.median_s <= max(timed.blocks_s)


@pytest.mark.parametrize(
    ("blocks_s", "others", "says"),
    [
        ([1.0, 1.1, 1.2], 0.02, ""),
        ([1.0, 1.1, 1.2], None, ""),
        ([], 0.0, ""),
        ([1.0, 1.1, 1.2], 0.5, "other processes took 50 % of the processors"),
        ([1.0, 2.5, 1.2], None, "repeated measurements varied by 2.5 times"),
    ],
)
def test_a_figure_is_doubted_for_its_spread_and_for_work_of_others(
    blocks_s: list[float], others: float | None, says: str
) -> None:
    assert reason(blocks_s, others) == says


def test_what_others_took_is_all_work_less_our_own() -> None:
    before, after = ProcessorTimes(10.0, 1.0), ProcessorTimes(13.0, 2.0)
    assert others_share(before, after, 2.0, 2) == pytest.approx(0.5)
    assert others_share(before, after, 0.01, 2) is None  # too short for the kernel's counting
    assert others_share(before, ProcessorTimes(10.5, 2.0), 2.0, 2) == 0.0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the kernel does not tell")
def test_a_figure_measured_beside_busy_processes_is_doubted() -> None:
    import os

    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        time.sleep(0.3)
        watch = Watch()
        watch.median_s("a sum", lambda: sum(range(1000)), within_s=1.0)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert [doubt.figure for doubt in watch.doubts] == ["a sum"]
    assert "% of the processors" in watch.doubts[0].why


def test_figures_that_cannot_be_are_doubted() -> None:
    assert not list(implausible(measured()))
    attention = AttentionTime("cpu", "fp32", 1, 1, 1000, 100, 0.0002, 0.0002)
    (doubt,) = implausible(measured(attention=(attention,)))
    assert doubt == Doubt(attention.figure, "15.0 times the rate of the fastest product")
    (doubt,) = implausible(measured(disk_read_bytes_per_s=1e11))
    assert doubt == Doubt("disk read", "faster than a copy in memory")


def test_doubtful_figures_are_marked_in_a_file_that_still_loads(tmp_path: Path) -> None:
    doubts = (Doubt("disk write", "it varied"), Doubt("message 1 bytes", "others"))
    path = tmp_path / "this.toml"
    path.write_text(cluster_toml(measured(doubts=doubts)))
    text = path.read_text()
    assert "# WARNING: 2 of 7 figures are doubtful" in text
    assert 'bandwidth = "0.182GB/s"  # DOUBTFUL: it varied' in text
    assert 'latency = "10.000us"  # DOUBTFUL: others' in text
    assert "# message 1 bytes: 10.0 us  <- DOUBTFUL: others" in text
    assert load_cluster(path).links["room"].latency_s == 1e-5
    assert "DOUBTFUL" not in cluster_toml(measured())


def test_a_doubtful_layer_is_marked_beside_its_times_and_in_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = (MeasuredTime(1, 1e-3, 2e-3), MeasuredTime(2, 2e-3, 4e-3))
    entry = LayerProfile(shape_of(TINY, "layer"), 32, times, "test", dtype="fp32")
    doubt = Doubt(layer_figure(entry.case, 2), "others")
    monkeypatch.setattr("ratrain.profile.layers.layer_profiles",
                        lambda *_: LayersTimed((entry,), (doubt,)))  # fmt: skip
    monkeypatch.setattr(machine, "measure", lambda *_: measured())
    path = tmp_path / "this.toml"
    ran = CliRunner().invoke(command, ["--layers", "tiny-llama", "-o", str(path)])
    assert ran.exit_code == 0, ran.output
    assert "1 of 9 figures are doubtful" in ran.stderr
    marked = [line for line in ran.stdout.splitlines() if "micro-batch" in line]
    assert [line[0] for line in marked] == [" ", "?"]
    (line,) = (line for line in path.read_text().splitlines() if "DOUBTFUL:" in line)
    assert line.startswith("  {micro_batch = 2") and line.endswith("# DOUBTFUL: others")
    (device,) = load_cluster(path).device
    assert device.layer_profile[0].times == times
    ran = CliRunner().invoke(command, ["--layers", "tiny-llama", "--strict"])
    assert isinstance(ran.exception, SpecError)


def test_the_verb_warns_about_doubts_and_strict_refuses_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubted = measured(doubts=(Doubt("memory copy", "others"),))
    monkeypatch.setattr(machine, "measure", lambda *_: doubted)
    path = tmp_path / "this.toml"
    ran = CliRunner().invoke(command, ["-o", str(path)])
    assert ran.exit_code == 0
    assert "? memory copy" in ran.stdout
    assert "1 of 7 figures are doubtful" in ran.stderr
    assert path.exists()
    assert all(len(line) <= 80 for line in ran.output.splitlines() if str(tmp_path) not in line)
    path.unlink()
    ran = CliRunner().invoke(command, ["-o", str(path), "--strict"])
    assert isinstance(ran.exception, SpecError)
    assert "memory copy (others); nothing was written" in ran.exception.what
    assert not path.exists()
    quiet = replace(doubted, doubts=())
    monkeypatch.setattr(machine, "measure", lambda *_: quiet)
    assert CliRunner().invoke(command, ["-o", str(path), "--strict"]).exit_code == 0
    assert path.exists()
