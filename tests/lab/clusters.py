"""Small clusters for labs, as the text of cluster files."""

from __future__ import annotations

from ratrain.describe.cluster import ClusterSpec
from ratrain.describe.strict import load
from ratrain.readers.toml import parse_toml

DEVICE = """
[[device]]
name = "{name}"
launch = "10us"
launch_source = "made up"
memory_efficiency = 0.8
memory_efficiency_source = "made up"
[device.lab]
cpus = {cpus}
overhead = "50MB"
[[device.tiers]]
name = "RAM"
capacity = "100MB"
bandwidth = "10GB/s"
source = "made up"
[[device.rates]]
dtype = "fp32"
peak = "100GFLOP/s"
gemm = "50GFLOP/s"
source = "made up"
"""

HOST = """
[[host]]
name = "{name}"
device = "{name}"
devices = {devices}
count = {count}
site = "{site}"
"""

LINK = """
[links.{level}]
latency = "{latency}"
bandwidth = "{bandwidth}"
shared_by = "{shared_by}"
source = "made up"
"""


def device(name: str = "d", cpus: float = 0.5) -> str:
    return DEVICE.format(name=name, cpus=cpus)


def host(name: str = "d", devices: int = 1, count: int = 2, site: str = "here") -> str:
    return HOST.format(name=name, devices=devices, count=count, site=site)


def link(
    level: str = "room",
    bandwidth: str = "100Mbit/s",
    shared_by: str = "host",
    latency: str = "1us",
) -> str:
    return LINK.format(level=level, bandwidth=bandwidth, shared_by=shared_by, latency=latency)


def text(*parts: str) -> str:
    return 'name = "small"\nsource = "made up"\n' + "".join(parts)


def cluster(*parts: str) -> ClusterSpec:
    table, place = parse_toml(text(*parts), "small.toml")
    return load(ClusterSpec, table, place)


def plain(devices: int = 1, count: int = 2, bandwidth: str = "100Mbit/s") -> ClusterSpec:
    """Equal hosts on one slow network."""
    return cluster(device(), host(devices=devices, count=count), link(bandwidth=bandwidth))


def apart(latency: str = "20ms", bandwidth: str = "40Mbit/s") -> ClusterSpec:
    """Two hosts in one room, and one on another site, far away."""
    far = link("world", bandwidth, latency=latency)
    return cluster(device(), host(), host(count=1, site="there"), link(), far)
