"""The machine measured: real products, real sockets, a file that loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratrain.describe.presets import load_cluster
from ratrain.errors import SpecError
from ratrain.profile.attention import AttentionTime, attention_times
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


def test_attention_is_measured_in_both_directions_where_torch_is() -> None:
    if not torch_installed():
        assert not list(attention_times())
        return
    one = next(iter(attention_times()))
    assert one.forward_s > 0
    assert one.backward_s > 0
    assert one.flops_rate == pytest.approx(
        6 * one.sequences * one.heads * one.tokens**2 * one.head_dim
        / (one.forward_s + one.backward_s)
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
        ('"this.toml"', "name = 'x'", "does not describe one device"),
        ('"this.toml"', "[[device]]\nprofile = 'this.toml'", "a profile of its own"),
        ('"this.toml"', "device = [1]", "is no table"),
        ('"this.toml"', "not toml", "not valid TOML"),
        ('"this.toml"', "[[device]]\nname = 'x'\nspeed = 3", "unknown key"),
        ("3", "", "no file's name"),
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
