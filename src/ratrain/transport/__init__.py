"""One-sided writes with immediates over whatever network there is.

    engine = Engine(Config(secret=secret))
    region = engine.register(array)            # its descriptor goes to the peers
    engine.write(region, descriptor, imm=7).wait()
    engine.counter(7).wait(1)                  # at the receiver

Imports nothing of RATrain but `ratrain.errors`.
"""

from ratrain.transport.address import Address, Descriptor
from ratrain.transport.config import Config, Tls
from ratrain.transport.counters import Counter
from ratrain.transport.engine import Engine
from ratrain.transport.groups import ImmBlock, PeerGroup, Target
from ratrain.transport.memory import Region, Span
from ratrain.transport.transfer import Transfer
from ratrain.transport.words import Word

__all__ = [
    "Address",
    "Config",
    "Counter",
    "Descriptor",
    "Engine",
    "ImmBlock",
    "PeerGroup",
    "Region",
    "Span",
    "Target",
    "Tls",
    "Transfer",
    "Word",
]
