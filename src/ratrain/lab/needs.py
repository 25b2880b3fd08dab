"""What a lab needs of this machine, tried for real."""

from __future__ import annotations

import os
import shutil
import subprocess

from ratrain.errors import Infeasible
from ratrain.lab import groups, wires


def missing() -> list[str]:
    """Why no lab can be made here, one line a reason; empty where one can."""
    if os.geteuid() != 0:
        return ["it needs root"]
    reasons = [
        f"the command `{tool}` is missing" for tool in ("ip", "tc") if not shutil.which(tool)
    ]
    return [*(reasons or _network_reasons()), *_group_reasons()]


def _network_reasons() -> list[str]:
    """The first thing about networks that fails, tried in a namespace of its own."""
    space = f"ratlab-try-{os.getpid()}"
    bucket = wires.token_bucket("try0", 1e6)
    steps = [
        ("network namespaces", f"ip netns add {space}"),
        ("virtual interfaces", f"ip -n {space} link add try0 type veth peer name try1"),
        ("bridges", f"ip -n {space} link add try2 type bridge"),
        ("rate limits (tbf)", f"tc -n {space} {bucket}"),
        ("rate limits (htb)", f"tc -n {space} qdisc add dev try1 root htb"),
    ]
    try:
        for ability, command in steps:
            try:
                wires.run(*command.split())
            except Infeasible as error:
                return [f"no {ability}: {error.what}"]
    finally:
        subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
    return []


def _group_reasons() -> list[str]:
    """Which of the two controllers cannot be used, and why."""
    parents = groups.here()
    reasons = [
        f"no control group for {name}: it is not mounted, or not accessible"
        for name in groups.CONTROLLERS
        if not any(name in parent.controllers for parent in parents)
    ]
    return reasons + [
        f"the control group {parent.path} is read-only"
        for parent in parents
        if not os.access(parent.path, os.W_OK)
    ]
