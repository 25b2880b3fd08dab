"""The machine measured: real products, real sockets, a file that loads."""

from __future__ import annotations

from pathlib import Path

from ratrain.describe.presets import load_cluster
from ratrain.profile.links import SIZES_BYTES, MessageTime, latency_and_bandwidth, message_times
from ratrain.profile.machine import MachineProfile, cluster_toml
from ratrain.profile.products import ProductTime, launch_s, torch_installed


def test_messages_between_two_processes_are_measured_at_every_size() -> None:
    times = message_times()
    assert tuple(t.size_bytes for t in times) == SIZES_BYTES
    assert times[-1].time_s > times[0].time_s > 0


def test_latency_and_bandwidth_are_found_again() -> None:
    made = [MessageTime(size, 10e-6 + size / 2e9) for size in SIZES_BYTES]
    latency_s, bandwidth = latency_and_bandwidth(made)
    assert abs(latency_s - 10e-6) < 1e-8
    assert abs(bandwidth / 2e9 - 1) < 1e-6


def test_starting_an_operator_takes_less_than_a_millisecond() -> None:
    assert 0 < launch_s() < 1e-3


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


def test_asking_for_torch_does_not_import_it() -> None:
    import sys

    before = "torch" in sys.modules
    torch_installed()
    assert ("torch" in sys.modules) == before
