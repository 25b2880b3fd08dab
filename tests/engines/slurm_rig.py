"""A real Slurm on this machine: a controller and four nodes, each in a network, a process tree, a
host name and a list of hosts of its own. Everything is a child of this process, and ends with it.

n1 and n2 have the feature `new`, n3 and n4 `old`; jobs in the partition `high` preempt those in
`low`, which are given `GRACE_S` seconds.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from ratrain.engines.host_lists import hosts

NODES = ("n1", "n2", "n3", "n4")
HEAD = "head"
NETWORK = "10.98.77"
GRACE_S = 30
TOOLS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
HOST_TOOLS = ("ip", "nsenter", "unshare", "setpriv")
CPUS = 2
_UP_S = 60.0
_SETTLES_S = 4.0
_MADE = count()


def missing(tools: Sequence[str] = (*TOOLS, *HOST_TOOLS)) -> str:
    """Why there can be no Slurm here; "" where there can."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [tool for tool in tools if shutil.which(tool, path=path) is None]
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    return f"{', '.join(absent)} not installed (apt: slurm-wlm, munge, iproute2)" if absent else ""


def missing_hosts() -> str:
    """Why there can be no hosts here; "" where there can."""
    return missing(HOST_TOOLS)


class Hosts:
    """Four hosts and a head, until `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "RATRAIN_"))},
            "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self._mark = f"rs{os.getpid() % 10000}{'abcdefgh'[next(_MADE) % 8]}"
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def on(self, host: str, *words: str) -> list[str]:
        """`words` as a command on a host, or on the head."""
        return [*self._entered(host), *words]

    def shell(self, host: str) -> str:
        """What runs the words behind it on a host, for a shell."""
        return shlex.join(self._entered(host))

    def _entered(self, host: str) -> list[str]:
        within = (
            f"hostname {host}; mount --bind {self.folder}/hosts /etc/hosts; "
            f"mkdir -p {self.folder}/disk-{host} /mnt; "
            f'mount --bind {self.folder}/disk-{host} /mnt; exec "$@"'
        )
        network = f"--net=/run/netns/{self._mark}-{host}"
        return ["nsenter", network, "unshare", "--uts", "--mount", "sh", "-c", within, "sh"]

    def run(
        self, *words: str, timeout: float = 120, check: bool = True, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command on the head, to its end."""
        ended = subprocess.run(
            self.on(HEAD, *words),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=cwd or self.folder,
        )
        assert not check or ended.returncode == 0, (words, ended.stdout, ended.stderr)
        return ended

    def start(self, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        """A command on the head, running; its words come on its stdout."""
        return subprocess.Popen(
            self.on(HEAD, *words),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd or self.folder,
        )

    def close(self) -> None:
        for host in (HEAD, *NODES):
            subprocess.run(["ip", "netns", "del", f"{self._mark}-{host}"], check=False)

    def _connect(self) -> None:
        """Every node on one bridge, which is the head's."""
        lines = [f"netns add {self._mark}-{host}" for host in (HEAD, *NODES)]
        head = f"-n {self._mark}-{HEAD}"
        lines += [f"{head} link add br0 type bridge", f"{head} addr add {NETWORK}.254/24 dev br0"]
        lines += [f"{head} link set br0 up", f"{head} link set lo up"]
        for number, host in enumerate(NODES, start=1):
            node = f"-n {self._mark}-{host}"
            lines += [
                f"{head} link add v{number} type veth peer name eth0 netns {self._mark}-{host}",
                f"{head} link set v{number} master br0 up",
                f"{node} addr add {NETWORK}.{number}/24 dev eth0",
                f"{node} link set eth0 up",
                f"{node} link set lo up",
            ]
        for line in lines:
            subprocess.run(["ip", *line.split()], check=True)
        hosts = [(f"{NETWORK}.{number}", host) for number, host in enumerate(NODES, start=1)]
        table = [("127.0.0.1", "localhost"), (f"{NETWORK}.254", HEAD), *hosts]
        (self.folder / "hosts").write_text("".join(f"{a} {name}\n" for a, name in table))


class Slurm(Hosts):
    """A controller on the head and a node on each host, until `close`."""

    def __init__(self, folder: Path, *, node_timeout_s: int = 30) -> None:
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        super().__init__(folder)
        self.environment["SLURM_CONF"] = str(folder / "slurm.conf")
        try:
            self._configure(node_timeout_s)
            self._start()
        except BaseException:
            self.close()
            raise

    def submit(self, *words: str) -> str:
        """Submits with sbatch; the job's number."""
        return self.run("sbatch", "--parsable", *words).stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """What the controller says of a job."""
        told = self.run("scontrol", "show", "job", "-o", number, check=False).stdout
        return dict(re.findall(r"(\w+)=(\S*)", told.splitlines()[0] if told else ""))

    def state(self, number: str) -> str:
        return self.job(number).get("JobState", "")

    def nodes_of(self, number: str) -> list[str]:
        """Of a job, those of all components of a het job."""
        told = self.run("squeue", "-h", "-j", number, "-o", "%N").stdout
        return [name for line in told.split() for name in hosts(line)]

    def wait_state(self, number: str, *states: str, timeout_s: float = 90) -> str:
        """Waits for a job to be in one of the states."""
        end_s = time.monotonic() + timeout_s
        while (state := self.state(number)) not in states:
            assert time.monotonic() < end_s, (number, state, self.job(number))
            time.sleep(0.2)
        return state

    def start_now(self, number: str, timeout_s: float = 90) -> None:
        """A job that was queued again need not wait its two minutes. A moment it must: nodes still
        take its new start for the old one, and Slurm gives it up ("credential revoked")."""
        time.sleep(_SETTLES_S)
        end_s = time.monotonic() + timeout_s
        while self.state(number) == "PENDING":
            assert time.monotonic() < end_s, self.job(number)
            self.run("scontrol", "update", f"JobId={number}", "StartTime=now", check=False)
            time.sleep(0.5)

    def lose(self, host: str) -> None:
        """A node is gone with all that runs there."""
        daemon = self._daemons.pop(host)
        daemon.kill()
        daemon.wait()

    def bring_back(self, host: str) -> None:
        """A node that was lost has booted."""
        self._daemon(host, self.on(host, "slurmd", "-D", "-N", host))

    def clear(self) -> None:
        """Ends all jobs, and waits for their nodes."""
        self.run("scancel", "--user=root", check=False)
        end_s = time.monotonic() + 60
        while self.run("squeue", "-h", check=False).stdout.strip() and time.monotonic() < end_s:
            time.sleep(0.2)

    def close(self) -> None:
        for daemon in reversed(list(self._daemons.values())):
            with suppress(ProcessLookupError):
                daemon.send_signal(signal.SIGKILL)  # --kill-child: its whole tree ends
        for daemon in self._daemons.values():
            daemon.wait()
        super().close()

    def _configure(self, node_timeout_s: int) -> None:
        folder = self.folder
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for name in ("state", "log", *(f"spool-{host}" for host in NODES)):
            (folder / name).mkdir()
        (folder / "cgroup.conf").write_text(
            "CgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n"
        )
        (folder / "slurm.conf").write_text(
            f"""ClusterName=rig
SlurmctldHost={HEAD}({NETWORK}.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=30
MinJobAge=600
ReturnToService=2
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
SlurmctldPidFile={folder}/state/slurmctld.pid
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdPidFile={folder}/state/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmctldTimeout=30
SlurmdTimeout={node_timeout_s}
InactiveLimit=0
NodeName=n1 NodeAddr={NETWORK}.1 CPUs={CPUS} RealMemory=4000 Feature=new State=UNKNOWN
NodeName=n2 NodeAddr={NETWORK}.2 CPUs={CPUS} RealMemory=4000 Feature=new State=UNKNOWN
NodeName=n3 NodeAddr={NETWORK}.3 CPUs={CPUS} RealMemory=4000 Feature=old State=UNKNOWN
NodeName=n4 NodeAddr={NETWORK}.4 CPUs={CPUS} RealMemory=4000 Feature=old State=UNKNOWN
PartitionName=low Nodes=n[1-4] Default=YES MaxTime=INFINITE PriorityTier=1 \
PreemptMode=REQUEUE GraceTime={GRACE_S}
PartitionName=high Nodes=n[1-4] MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""
        )

    def _start(self) -> None:
        folder = self.folder
        self._daemon(
            "munged",
            [
                *("munged", "--foreground", "--force", f"--socket={folder}/munge.socket"),
                *(f"--key-file={folder}/munge.key", f"--pid-file={folder}/munge.pid"),
                *(f"--log-file={folder}/log/munged.log", f"--seed-file={folder}/munge.seed"),
            ],
        )
        self._daemon("slurmctld", self.on(HEAD, "slurmctld", "-D"))
        for host in NODES:
            self._daemon(host, self.on(host, "slurmd", "-D", "-N", host))
        end_s = time.monotonic() + _UP_S
        while (
            self.run(
                "sinfo", "-h", "-t", "idle", "-o", "%D", "-p", "low", check=False
            ).stdout.strip()
            != "4"
        ):
            assert time.monotonic() < end_s, self.run("sinfo", "-N", "-l", check=False).stdout
            time.sleep(0.2)

    def _daemon(self, name: str, words: Sequence[str]) -> None:
        """In a process tree of its own, which ends with its first process."""
        tree = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ]
        with (self.folder / f"{name}.out").open("wb") as output:
            self._daemons[name] = subprocess.Popen(
                [*tree, *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
