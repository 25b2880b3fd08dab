"""Move a request's KV-cache pages from a prefill engine into a decode engine's pool."""

import numpy as np

from ratrain.transport import Config, Engine
from ratrain.transport.uses.kvcache import PagePool, Ticket, send_pages

config = Config(b"the job's own secret")
with Engine(config) as prefill, Engine(config) as decode:
    pool = PagePool(decode, pages=64, page_bytes=16384)
    cache = np.random.default_rng(0).integers(0, 256, (256, 16384), np.uint8)
    ticket = pool.reserve(10)
    theirs = Ticket.from_bytes(ticket.to_bytes())  # travels with the request
    send_pages(prefill, theirs, prefill.register(cache, remote=False), range(100, 110)).wait()
    pool.wait(ticket, prefill.address)
    same = np.array_equal(pool.memory[list(ticket.pages)], cache[100:110])
    print(f"10 pages of 16 KiB arrived, equal: {same}; {pool.free_pages} pages free")
    pool.release(ticket)
    print(f"released: {pool.free_pages} pages free")
