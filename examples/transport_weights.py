"""Publish weights from two training ranks (cut by rows) to one inference rank (whole).

Here all engines live in one process; between hosts, hand over the offers by any means.
"""

import numpy as np

from ratrain.transport import Config, Engine
from ratrain.transport.uses.weights import Publisher, Subscriber, shard

config = Config(b"the job's own secret")
shapes = {"w": (1024, 512), "norm": (512,)}
full = np.random.default_rng(0).standard_normal(1024 * 512 + 512).astype(np.float32)
w, norm = full[: 1024 * 512].reshape(1024, 512), full[1024 * 512 :]

with Engine(config) as first, Engine(config) as second, Engine(config) as server:
    held = {e.address: shard(shapes, 4, 0, i, 2) for i, e in enumerate((first, second))}
    subscriber = Subscriber(server, shard(shapes, 4, 0, 0, 1))
    offer = subscriber.offer()
    for i, engine in enumerate((first, second)):
        mine = np.concatenate([np.split(w, 2)[i].reshape(-1), np.split(norm, 2)[i]])
        for transfer in Publisher(engine, held[engine.address], mine).publish([offer]):
            transfer.wait()
    version = subscriber.accept(held)
    same = np.array_equal(subscriber.weights.view(np.float32), full)
    print(f"version {version} in use, {subscriber.weights.nbytes} bytes, equal: {same}")
