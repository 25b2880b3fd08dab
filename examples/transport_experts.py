"""Send tokens to their experts on four ranks and bring the weighted results back."""

import threading

import numpy as np

from ratrain.transport import Config, Engine
from ratrain.transport.uses.experts import ExpertExchange

RANKS, EXPERTS_PER_RANK, TOP, HIDDEN, TOKENS = 4, 2, 2, 64, 100
engines = [Engine(Config(b"the job's own secret", f"rank{r}")) for r in range(RANKS)]
exchanges = [ExpertExchange(e, r, RANKS, HIDDEN, TOKENS * TOP) for r, e in enumerate(engines)]
for exchange in exchanges:
    exchange.join([x.inbox for x in exchanges])


def work(rank: int) -> None:
    """One layer: every expert e multiplies by e + 1."""
    rng = np.random.default_rng(rank)
    tokens = rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32)
    experts = rng.integers(0, RANKS * EXPERTS_PER_RANK, (TOKENS, TOP))
    weights = rng.random((TOKENS, TOP)).astype(np.float32)
    rows, local = exchanges[rank].dispatch(tokens, experts, weights, EXPERTS_PER_RANK)
    scale = (local + rank * EXPERTS_PER_RANK + 1).astype(np.float32)
    out = exchanges[rank].combine(rows * scale[:, None])
    want = tokens * ((experts + 1) * weights).sum(1)[:, None]
    print(
        f"rank {rank}: {len(rows)} rows for its experts, right: {np.allclose(out, want, rtol=1e-4)}"
    )


threads = [threading.Thread(target=work, args=(r,)) for r in range(RANKS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for engine in engines:
    engine.close()
