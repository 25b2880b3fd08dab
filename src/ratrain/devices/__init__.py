"""Kinds of device that ranks compute on: where tensors lie, streams of work, memory.

A lane has a host thread and a stream. `finish` waits until the device has done all that the stream
was given: an op is over then, on every kind of device alike.
"""

from ratrain.devices.cpu import CPU
from ratrain.devices.device import Device, Mark, Memory, Stream
from ratrain.devices.kinds import device_of_kind, gpus_here, require_gpu

__all__ = [
    "CPU",
    "Device",
    "Mark",
    "Memory",
    "Stream",
    "device_of_kind",
    "gpus_here",
    "require_gpu",
]
