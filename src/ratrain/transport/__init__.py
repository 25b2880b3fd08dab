"""One-sided writes with immediates over whatever network there is.

    engine = Engine(Config(secret=secret))
    region = engine.register(array)            # its descriptor goes to the peers
    engine.write(region, descriptor, imm=7).wait()
    engine.counter(7).wait(1)                  # at the receiver

It imports only `ratrain.errors` and `ratrain.compiled` from the rest of RATrain. Its folders are
floors, each of which imports only those before it: wire, memory, loop, engine, providers, surface,
uses.
"""

from ratrain.transport.config import Config, Tls
from ratrain.transport.engine.counters import Counter
from ratrain.transport.engine.transfer import Transfer
from ratrain.transport.memory.regions import DeviceSpan, Region, Span
from ratrain.transport.surface.engine import Engine
from ratrain.transport.surface.groups import ImmBlock, PeerGroup
from ratrain.transport.surface.staging import CudaAdapter, HostAdapter, Stage
from ratrain.transport.surface.traffic import Target
from ratrain.transport.surface.words import Word
from ratrain.transport.wire.address import Address, Descriptor

__all__ = [
    "Address",
    "Config",
    "Counter",
    "CudaAdapter",
    "Descriptor",
    "DeviceSpan",
    "Engine",
    "HostAdapter",
    "ImmBlock",
    "PeerGroup",
    "Region",
    "Span",
    "Stage",
    "Target",
    "Tls",
    "Transfer",
    "Word",
]
