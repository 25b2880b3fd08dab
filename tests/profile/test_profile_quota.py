"""Which control groups can hold a process back, as the kernel's own files say it."""

from __future__ import annotations

from pathlib import Path

from ratrain.profile.quota import folders, throttled

FIRST = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
SECOND = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
DISK = "24 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"


def test_the_groups_of_version_1_are_those_of_the_processors_up_to_the_mount() -> None:
    listed = list(folders(DISK + FIRST + MEMORY, "4:memory:/other\n1:cpu,cpuacct:/lab/r0\n0::/\n"))
    top = Path("/sys/fs/cgroup/cpu")
    assert listed == [top / "lab" / "r0", top / "lab", top]


def test_the_groups_of_version_2_are_those_of_the_one_hierarchy() -> None:
    top = Path("/sys/fs/cgroup")
    listed = list(folders(SECOND.format(root="/"), "0::/user.slice/session\n"))
    assert listed == [top / "user.slice" / "session", top / "user.slice", top]


def test_a_container_sees_its_own_part_of_the_hierarchy() -> None:
    listed = list(folders(SECOND.format(root="/docker/1f"), "0::/docker/1f/inner\n"))
    assert listed == [Path("/sys/fs/cgroup/inner"), Path("/sys/fs/cgroup")]


def test_a_machine_without_control_groups_has_none() -> None:
    assert list(folders(DISK, "")) == []


def test_the_count_of_pauses_never_falls() -> None:
    before = throttled()
    assert 0 <= before <= throttled()
