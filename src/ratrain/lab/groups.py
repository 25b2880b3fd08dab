"""Control groups, version 1 or 2: a share of the processors and a limit of memory for a rank.

A lab's groups stand below this process's own group where the kernel lets them, so that a limit
that already holds here keeps holding. With version 2 a group that has processes can have no
groups with limits below it; then the nearest group further up that can is taken.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ratrain.errors import Infeasible

PERIOD_US = 20_000  # the period of a share of the processors; short: even progress
CONTROLLERS = ("cpu", "memory")


@dataclass(frozen=True)
class Mount:
    """A mounted hierarchy of control groups."""

    path: Path
    root: str  # what of the hierarchy is mounted here
    version: int
    controllers: tuple[str, ...]


@dataclass(frozen=True)
class Parent:
    """The folder in which the groups of one or both controllers are made."""

    path: Path
    version: int
    controllers: tuple[str, ...]


def mounts(mountinfo: str) -> list[Mount]:
    """The hierarchies in the text of /proc/self/mountinfo."""
    mounted: list[Mount] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, path = left.split(" ")[3:5]
        if kind == "cgroup":
            mounted.append(Mount(Path(path), root, 1, tuple(options.split(","))))
        elif kind == "cgroup2":
            listed = Path(path) / "cgroup.controllers"
            names = listed.read_text().split() if listed.exists() else []
            mounted.append(Mount(Path(path), root, 2, tuple(names)))
    return mounted


def parents(mounted: list[Mount], process_groups: str) -> list[Parent]:
    """Where groups with limits of processors and memory can be made; fewer where they cannot.

    `process_groups` is the text of /proc/self/cgroup.
    """
    chosen: list[Parent] = []
    for name in CONTROLLERS:
        mount = next((m for m in mounted if m.version == 1 and name in m.controllers), None)
        if mount is not None:
            chosen.append(Parent(_own_folder(mount, name, process_groups), 1, (name,)))
    second = next(
        (m for m in mounted if m.version == 2 and {*CONTROLLERS} <= {*m.controllers}), None
    )
    if not chosen and second is not None:
        folder = _allowing(_own_folder(second, "", process_groups), second.path)
        chosen += [Parent(folder, 2, CONTROLLERS)] if folder else []
    return chosen


def here() -> list[Parent]:
    """The same, for this process."""
    return parents(
        mounts(Path("/proc/self/mountinfo").read_text()), Path("/proc/self/cgroup").read_text()
    )


def _own_folder(mount: Mount, controller: str, own_groups: str) -> Path:
    """This process's folder under the mount; the mount itself where that is not visible."""
    for line in own_groups.splitlines():
        number, names, path = line.split(":", 2)
        if controller in names.split(",") if controller else number == "0":
            relative = path.removeprefix(mount.root.rstrip("/")).lstrip("/")
            folder = mount.path / relative
            return folder if folder.is_dir() else mount.path
    return mount.path


def _allowing(folder: Path, top: Path) -> Path | None:
    """The nearest folder upwards in which a group with both limits can be made."""
    upwards = [
        folder,
        *(parent for parent in folder.parents if parent == top or top in parent.parents),
    ]
    for candidate in upwards:
        if _enabled(candidate):
            return candidate
    for candidate in upwards:
        with suppress(OSError):
            (candidate / "cgroup.subtree_control").write_text("+cpu +memory")
            if _enabled(candidate):
                return candidate
    return None


def _enabled(folder: Path) -> bool:
    control = folder / "cgroup.subtree_control"
    return control.exists() and {*CONTROLLERS} <= set(control.read_text().split())


def make(parent: Parent, lab: str, rank: int, cpus: float, memory_bytes: int) -> Path:
    """A group for one rank, its limits in force."""
    top = parent.path / lab
    folder = top / f"r{rank}"
    try:
        top.mkdir(exist_ok=True)
        if parent.version == 2:
            (top / "cgroup.subtree_control").write_text("+cpu +memory")
        for name, value in _first(parent):
            (top / name).write_text(value)
        folder.mkdir()
        for name, value in _limits(parent, cpus, memory_bytes):
            if name in _WHERE_PRESENT and not (folder / name).exists():
                continue
            (folder / name).write_text(value)
    except OSError as error:
        raise Infeasible(
            f"cannot make a control group: {error.strerror}",
            place=str(folder),
            fix="run as root where control groups are mounted writable",
        ) from error
    return folder


def make_beside(parent: Parent, lab: str, name: str) -> Path:
    """A group for a helper of the lab, to be removed with the rest: no limits, and first of all."""
    folder = parent.path / lab / name
    folder.mkdir()
    for file, value in _first(parent):
        (folder / file).write_text(value)
    return folder


def _first(parent: Parent) -> list[tuple[str, str]]:
    """A lab's ranks go before other work of the machine, as far as their quotas go: they stand for
    devices that nobody else uses."""
    if parent.version == 2:
        return [("cpu.weight", "10000")]
    return [("cpu.shares", "262144")] if "cpu" in parent.controllers else []


_WHERE_PRESENT = ("memory.memsw.limit_in_bytes", "memory.swap.max")  # kernels without swap


def _quota_us(cpus: float) -> int:
    return max(1000, round(cpus * PERIOD_US))


def _limits(parent: Parent, cpus: float, memory_bytes: int) -> list[tuple[str, str]]:
    """(file, value) of the limits of the parent's controllers; swap counts as memory."""
    quota_us = _quota_us(cpus)
    if parent.version == 2:
        return [
            ("cpu.max", f"{quota_us} {PERIOD_US}"),
            ("memory.max", str(memory_bytes)),
            ("memory.swap.max", "0"),
        ]
    if "cpu" in parent.controllers:
        return [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", str(quota_us))]
    return [
        ("memory.limit_in_bytes", str(memory_bytes)),
        ("memory.memsw.limit_in_bytes", str(memory_bytes)),
    ]


def limit_cpus(folders: Iterable[str], cpus: float) -> None:
    """Gives the processes of a rank's groups another share of the processors."""
    quota_us = _quota_us(cpus)
    for folder in map(Path, folders):
        for file, value in (
            ("cpu.max", f"{quota_us} {PERIOD_US}"),
            ("cpu.cfs_quota_us", str(quota_us)),
        ):
            if (folder / file).exists():
                (folder / file).write_text(value)


def oom_kills(folders: Iterable[str]) -> int:
    """How many processes the kernel killed in these groups because memory ran out."""
    return _count(folders, ("memory.events", "memory.oom_control"), "oom_kill")


def throttled(folders: Iterable[str]) -> int:
    """In how many periods these groups used up their share of the processors and had to wait."""
    return _count(folders, ("cpu.stat",), "nr_throttled")


def _count(folders: Iterable[str], names: tuple[str, ...], field: str) -> int:
    """The field of the first file of those names that has it."""
    for folder in folders:
        for name in names:
            file = Path(folder) / name
            lines = file.read_text().splitlines() if file.exists() else []
            fields = dict(line.split() for line in lines)
            if field in fields:
                return int(fields[field])
    return 0


def remove(top: Path, wait_s: float = 5.0) -> None:
    """Kill what still runs in a lab's groups, and remove them."""
    if not top.is_dir():
        return
    folders = [entry for entry in top.iterdir() if entry.is_dir()]
    end_s = time.monotonic() + wait_s
    for folder in (*folders, top):
        _remove_folder(folder, end_s)


def _remove_folder(folder: Path, end_s: float) -> None:
    """A group is busy for a moment after its last process ended, and while one has just joined: a
    rank whose launcher was killed meanwhile still joins."""
    while True:
        try:
            _kill_processes(folder)
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > end_s:
                raise Infeasible(
                    f"cannot remove a control group: {error.strerror}",
                    place=str(folder),
                    fix="end the processes in its cgroup.procs, then `ratrain lab clean`",
                ) from error
            time.sleep(0.01)
        else:
            return


def _kill_processes(folder: Path) -> None:
    """All of the group, this one left out."""
    for pid in map(int, (folder / "cgroup.procs").read_text().split()):
        if pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
