"""What a lab needs of this machine, tried for real."""

from __future__ import annotations

import os
import shutil
import subprocess

from ratrain.errors import Infeasible
from ratrain.lab import groups, relay_order, wires


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
    bucket = wires.token_bucket("try0", 1e6)
    return _first_failure(
        ("virtual interfaces", "ip", "link add try0 type veth peer name try1"),
        ("bridges", "ip", "link add try2 type bridge"),
        ("rate limits (tbf)", "tc", bucket),
        ("rate limits (htb)", "tc", "qdisc add dev try1 root htb"),
    )


def missing_for_latency() -> str:
    """Why no latency can be added here, where a lab can be made; "" where it can."""
    try:
        os.close(os.open(relay_order.TUN, os.O_RDWR))
    except OSError as error:
        return f"no tap interfaces: {relay_order.TUN}: {error.strerror}"
    failures = _first_failure(
        ("virtual interfaces", "ip", "link add try0 type veth peer name try1"),
        ("queues of what comes in", "tc", "qdisc add dev try0 ingress"),
        ("redirection (u32, mirred)", "tc", wires.redirect("try0", "10.88.0.1", "try1")),
    )
    return "".join(failures)


def _first_failure(*steps: tuple[str, str, str]) -> list[str]:
    """The first of these abilities that is missing: each with a tool, and its words there."""
    space = f"ratlab-try-{os.getpid()}"
    commands = [(ability, f"{tool} -n {space} {words}") for ability, tool, words in steps]
    try:
        for ability, command in [("network namespaces", f"ip netns add {space}"), *commands]:
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
