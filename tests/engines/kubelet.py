"""What Kubernetes does with a manifest of ours, on this machine: a stand-in for its controllers of
Jobs and JobSets and for a node's kubelet.

A pod is its container's command in a network namespace with an address of its own, with a host name
and process numbers of its own, and with no variables but those that Kubernetes sets. An index whose
pod failed gets a new one as `podFailurePolicy` and `backoffLimit` say, without the ten seconds and
more that Kubernetes waits before it. What is not here: images, volumes (the run's folder is where
it is), limits of memory, scheduling.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BRIDGE, NETWORK = "kube-br", "10.79.0"
Table = dict[str, Any]


def missing() -> str:
    """Why pods cannot run here; "" where they can."""
    if os.geteuid():
        return "needs root: pods have network namespaces"
    tools = [tool for tool in ("ip", "unshare", "nsenter") if shutil.which(tool) is None]
    return f"{', '.join(tools)} not found" if tools else ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Nodes:
    """Networks of pods, made for a test and removed with it."""

    def __init__(self) -> None:
        self._made: list[str] = []
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")

    def address(self) -> tuple[str, str]:
        """A new network namespace's name, and its address."""
        number = len(self._made) + 1
        name, address = f"kube-{number}", f"{NETWORK}.{number}"
        _ip("netns", "add", name)
        self._made.append(name)
        _ip("link", "add", f"kubv{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", f"kubv{number}", "master", BRIDGE, "up")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", name, "link", "set", device, "up")
        return name, address

    def close(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], check=False, capture_output=True)


@dataclass
class Pod:
    """A pod that was started. `deleted`: somebody asked for its end."""

    index: int
    process: subprocess.Popen[bytes]
    grace_s: float
    log: Path
    deleted: bool = False

    def signal(self, number: int) -> None:
        """To its process 1, where that has not ended."""
        thread = Path(f"/proc/{self.process.pid}/task/{self.process.pid}")
        with suppress(OSError):
            for child in (thread / "children").read_text().split():
                os.kill(int(child), number)

    def delete(self) -> None:
        """What `kubectl delete pod` does: SIGTERM to process 1, SIGKILL after the grace time."""
        self.deleted = True
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(self.grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()


@dataclass
class Job:
    """An indexed Job: its pods by index, and what became of it."""

    name: str
    spec: Table
    labels: Table
    pods: dict[int, Pod] = field(default_factory=dict[int, Pod])
    done: set[int] = field(default_factory=set[int])
    failures: int = 0
    starts: int = 0
    failed: str = ""  # its reason

    @property
    def complete(self) -> bool:
        return len(self.done) == self.spec["completions"]


class Cluster:
    """Runs manifests. `kinds`: the label `kind` of the nodes that there are."""

    def __init__(self, folder: Path, kinds: tuple[str, ...]) -> None:
        self._folder, self._kinds = folder, kinds
        self._nodes = Nodes()
        self.jobs: list[Job] = []
        self.restarts = 0
        self._policy: Table | None = None

    def close(self) -> None:
        for pod in self.pods:
            pod.process.kill()
            pod.process.wait()
        self._nodes.close()

    @property
    def pods(self) -> list[Pod]:
        """Those that run."""
        return [pod for job in self.jobs for pod in job.pods.values()]

    def apply(self, manifest: Table) -> None:
        """What `kubectl apply` does."""
        name, spec = manifest["metadata"]["name"], manifest["spec"]
        if manifest["kind"] == "Job":
            self.jobs = [Job(name, spec, {})]
        else:
            self._policy = spec["failurePolicy"]
            self.jobs = [
                Job(f"{name}-{each['name']}-0", each["template"]["spec"], {})
                for each in spec["replicatedJobs"]
            ]

    def run(self, meanwhile: Callable[[], None], timeout_s: float) -> str:
        """Until all is complete, or failed for good; "Complete", or the reason."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            meanwhile()
            for job in self.jobs:
                self._look(job)
            failed = [job for job in self.jobs if job.failed]
            if failed and not self._again(failed[0]):
                return failed[0].failed
            if all(job.complete for job in self.jobs):
                return "Complete"
            time.sleep(0.05)
        return f"still running after {timeout_s:g} s"

    def _look(self, job: Job) -> None:
        """One round of the controller of Jobs."""
        for index in range(job.spec["completions"]):
            pod = job.pods.get(index)
            if pod is None:
                if index not in job.done and not job.failed:
                    job.pods[index] = self._started(job, index)
                continue
            status = pod.process.poll()
            if status is None:
                continue
            del job.pods[index]
            if status == 0:
                job.done.add(index)
            else:
                self._failed(job, pod, status if status > 0 else 128 - status)

    def _failed(self, job: Job, pod: Pod, status: int) -> None:
        for rule in job.spec["podFailurePolicy"]["rules"]:
            codes = rule.get("onExitCodes")
            if codes is not None and codes["operator"] == "In" and status in codes["values"]:
                if rule["action"] == "FailJob":
                    job.failed = "PodFailurePolicy"
                return  # it is replaced; with Ignore it does not count
        job.failures += 1
        if job.failures > job.spec["backoffLimit"]:
            job.failed = "BackoffLimitExceeded"

    def _again(self, failed: Job) -> bool:
        """What a JobSet does about a failed Job: all start again, unless a rule says else."""
        policy = self._policy
        for pod in self.pods:
            pod.delete()
        reasons = [
            r for each in (policy or {}).get("rules", []) for r in each["onJobFailureReasons"]
        ]
        if policy is None or failed.failed in reasons or self.restarts >= policy["maxRestarts"]:
            return False
        self.restarts += 1
        for job in self.jobs:
            job.pods, job.done, job.failures, job.failed = {}, set(), 0, ""
        return True

    def _started(self, job: Job, index: int) -> Pod:
        pod = job.spec["template"]["spec"]
        assert pod["restartPolicy"] == "Never"
        wanted = pod.get("nodeSelector", {}).get("kind")
        assert wanted is None or wanted in self._kinds, f"no node has kind={wanted}"
        (container,) = pod["containers"]
        space, address = self._nodes.address()
        host = f"{job.name}-{index}"  # of a pod of an indexed Job
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",  # the image's `python3` is ours
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HOME": "/root",
            "HOSTNAME": host,
            "KUBERNETES_SERVICE_HOST": f"{NETWORK}.253",
            "JOB_COMPLETION_INDEX": str(index),
        }
        for each in container["env"]:
            source = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            assert source in (None, "status.podIP")
            environment[each["name"]] = address if source else each["value"]
        job.starts += 1
        log = self._folder / f"{host}-{job.starts}.log"
        named = ["sh", "-c", 'hostname "$0"; exec "$@"', host, *container["command"]]
        apart = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", *named]
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{space}", *apart],
                env=environment,
                cwd="/",
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return Pod(index, process, pod["terminationGracePeriodSeconds"], log)
