"""What moving bytes takes of this machine's processors, and the file that says it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from test_profile import measured

from ratrain.describe.device import BY_OTHERS, Driving
from ratrain.describe.presets import load_cluster
from ratrain.errors import TransportError
from ratrain.profile.cluster_file import cluster_toml
from ratrain.profile.doubt import Watch
from ratrain.profile.driving import (
    DRIVING,
    SIZES_BYTES,
    DrivingTimes,
    _line,  # pyright: ignore[reportPrivateUsage]
    driving_times,
    message_work,
)


def test_messages_and_their_bytes_take_processor_time() -> None:
    times = driving_times(Watch(), threads=1, rounds=4)
    assert 0 < times.per_message_s < 0.1
    assert 0 <= times.per_byte_s < 100e-9
    assert times.stall >= 0


def test_a_line_that_falls_is_doubted() -> None:
    watch = Watch()
    assert _line(watch, [4.0, 3.0, 2.0, 1.0]) == (0.0, 1.0 / SIZES_BYTES[-1])
    assert [doubt.figure for doubt in watch.doubts] == [DRIVING]


def test_another_process_that_cannot_start_is_said_to_be_missing() -> None:
    def start(_: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])

    with pytest.raises(TransportError, match="did not start"):
        message_work(Watch(), 1, start=start)


def test_a_cluster_file_says_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "this.toml"
    path.write_text(cluster_toml(measured(driving=DrivingTimes(2e-4, 1.5e-10, 0.5))))
    device = load_cluster(path).device[0]
    assert device.driving == Driving(2e-4, 1.5e-10, 0.5, device.driving.source)
    assert "measured" in device.driving.source


def test_a_device_that_others_move_bytes_for_says_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "this.toml"
    path.write_text(cluster_toml(measured()))
    assert "driving" not in path.read_text()
    assert load_cluster(path).device[0].driving == BY_OTHERS


def test_a_device_takes_the_table_of_its_profile(tmp_path: Path) -> None:
    (tmp_path / "this.toml").write_text(
        cluster_toml(measured(driving=DrivingTimes(2e-4, 1.5e-10, 0.5)))
    )
    path = tmp_path / "cluster.toml"
    path.write_text(
        'name = "two"\nsource = "a test"\n[[device]]\nname = "one"\nprofile = "this.toml"\n'
        '[[host]]\nname = "host"\ndevice = "one"\ndevices = 1\ncount = 1\n'
        '[links.room]\nlatency = "1ms"\nbandwidth = "1GB/s"\nsource = "a test"\n'
    )
    assert load_cluster(path).device[0].driving.per_message_s == 2e-4
