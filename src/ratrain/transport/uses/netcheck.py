"""Measures every pair of hosts: latency, bandwidth by message size and NIC; bytes verified.

On each host an `Agent` waits for orders; `check` has one ordered pair measured after the other, so
that pairs do not disturb each other. Each order has a deadline: a pair that fails is a row with its
error, never a hang.
"""

from __future__ import annotations

import json
import queue
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ratrain.errors import TransportError
from ratrain.readers.json import as_table, parse_json
from ratrain.transport.surface.engine import Engine
from ratrain.transport.wire.address import Address, Descriptor

SIZES = (1024, 16384, 262144, 1 << 22)
SPACE_BYTES = 16 << 20
MESSAGE_BYTES = 65536
Json = dict[str, Any]


class Agent:
    """One host's end: offers memory, measures when ordered to, answers with checksums."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._space = np.zeros(SPACE_BYTES, np.uint8)
        self._region = engine.register(self._space)
        noise = np.random.default_rng().integers(0, 256, SPACE_BYTES, np.uint8)
        self._noise = noise
        self._source = engine.register(noise, remote=False)
        self._orders: queue.SimpleQueue[tuple[Address, Json]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Json] = queue.SimpleQueue()
        engine.recv_pool(16, MESSAGE_BYTES, self._on_message)

    def serve(self, stop_after_s: float | None = None) -> None:
        """Follow orders until told to end, or after `stop_after_s` without an order."""
        while True:
            try:
                source, order = self._orders.get(timeout=stop_after_s)
            except queue.Empty:
                return
            if order["do"] == "end":
                return
            try:
                answer = self._measure(order)
            except TransportError as error:
                answer = {"error": str(error)}
            self._send(source, {"do": "answer", "id": order["id"], **answer})

    def _on_message(self, source: Address, data: bytes) -> None:
        order, _ = as_table(*parse_json(data, str(source)))
        if order["do"] == "place":
            self._send(
                source, {"do": "reply", "place": self._region.descriptor().to_bytes().decode()}
            )
        elif order["do"] == "crc":
            crc = zlib.crc32(self._space[: int(order["size"])].tobytes())
            self._send(source, {"do": "reply", "crc": crc})
        elif order["do"] == "reply":
            self._answers.put(order)
        else:
            self._orders.put((source, order))

    def _send(self, to: Address, body: Json) -> None:
        self._engine.send(to, json.dumps(body).encode(), deadline_s=10.0)

    def _ask(self, to: Address, body: Json) -> Json:
        self._send(to, body)
        try:
            return self._answers.get(timeout=10.0)
        except queue.Empty:
            raise TransportError("no reply in 10 s", place=str(to)) from None

    def _measure(self, order: Json) -> Json:
        to = Address.from_json(order["to"])
        engine = self._engine
        engine.connect(to, 10.0)
        place = Descriptor.from_bytes(self._ask(to, {"do": "place"})["place"].encode())
        rows: list[Json] = []
        for size in SIZES:
            span, target = self._source[:size], place[:size]
            times: list[float] = []
            for _ in range(30):
                began_s = time.perf_counter()
                engine.write(span, target, deadline_s=10.0).wait()
                times.append(time.perf_counter() - began_s)
            count = max(4, int(order["bytes"]) // size)
            count = min(count, 2000)
            began_s = time.perf_counter()
            transfers = [engine.write(span, target, deadline_s=30.0) for _ in range(count)]
            for transfer in transfers:
                transfer.wait()
            rate = count * size / (time.perf_counter() - began_s)
            rows.append(
                {
                    "size_bytes": size,
                    "latency_s": statistics.median(times) / 2,
                    "rate_bytes_per_s": rate,
                }
            )
        before = self._acked(to)
        began_s = time.perf_counter()
        engine.write(self._source, place, deadline_s=60.0).wait()
        took_s = time.perf_counter() - began_s
        crc = int(self._ask(to, {"do": "crc", "size": SPACE_BYTES})["crc"])
        nics = [
            {"nic": nic, "rate_bytes_per_s": (acked - before.get(nic, 0)) / took_s}
            for nic, acked in self._acked(to).items()
        ]
        link = engine.stats()["peers"][str(to)]["links"][0]
        return {
            "provider": link["provider"],
            "sizes": rows,
            "nics": nics,
            "verified": crc == zlib.crc32(self._noise.tobytes()),
        }

    def _acked(self, to: Address) -> dict[str, int]:
        links = self._engine.stats()["peers"][str(to)]["links"]
        return {f"{k['nic']}->{k['remote_nic']}": k["acked_bytes"] for k in links}


def check(
    engine: Engine,
    agents: Sequence[Address],
    total_bytes: int = 64 << 20,
    progress: Callable[[int, int], None] | None = None,
    level: str = "room",
) -> Json:
    """Measure every ordered pair of `agents`; rows with `latency_s` (half of a small write's
    acknowledged round trip) and `rate_bytes_per_s` (the best over the sizes), or an error.
    Where no pair failed, `cluster` holds the worst as the link `level` of a cluster file."""
    answers: queue.SimpleQueue[Json] = queue.SimpleQueue()
    engine.recv_pool(
        16,
        MESSAGE_BYTES,
        lambda source, data: answers.put(as_table(*parse_json(data, str(source)))[0]),
    )
    pairs = [(a, b) for a in agents for b in agents if a != b]
    links: list[Json] = []
    for number, (source, target) in enumerate(pairs):
        if progress is not None:
            progress(number, len(pairs))
        row: Json = {"from": source.name, "to": target.name}
        order = {"do": "measure", "id": number, "to": target.to_json(), "bytes": total_bytes}
        row.update(_order(engine, source, order, answers))
        if "sizes" in row:
            row["latency_s"] = row["sizes"][0]["latency_s"]
            row["rate_bytes_per_s"] = max(r["rate_bytes_per_s"] for r in row["sizes"])
        links.append(row)
    report: Json = {"agents": [a.name for a in agents], "links": links}
    if not any("error" in row for row in links):
        report["cluster"] = {"links": {level: _slowest(links)}}
    return report


def links_toml(report: Json) -> str:
    """The measured link as the part of a cluster file that `ratrain plan` reads."""
    lines: list[str] = []
    for level, link in report["cluster"]["links"].items():
        lines += [f"[links.{level}]", *(f'{key} = "{text}"' for key, text in link.items())]
    return "\n".join(lines)


def _slowest(rows: Sequence[Json]) -> Json:
    """A cluster file's link: the latency and bandwidth that every pair reaches."""
    latency_s = max(row["latency_s"] for row in rows)
    rate = min(row["rate_bytes_per_s"] for row in rows)
    return {
        "latency": f"{latency_s * 1e6:.3f}us",
        "bandwidth": f"{rate / 1e9:.6f}GB/s",
        "source": f"measured: ratrain net check, the worst of {len(rows)} directed pairs "
        f"({rows[0]['provider']})",
    }


def dismiss(engine: Engine, agents: Sequence[Address]) -> None:
    """Tell the agents to end."""
    for agent in agents:
        if engine.why_down(agent) is not None:
            continue
        transfer = engine.send(agent, b'{"do": "end"}', deadline_s=2.0)
        try:
            transfer.wait(3.0)
        except TransportError:
            continue  # it has ended already


def _order(engine: Engine, source: Address, order: Json, answers: queue.SimpleQueue[Json]) -> Json:
    try:
        engine.send(source, json.dumps(order).encode(), deadline_s=10.0).wait()
        end_s = time.monotonic() + 150.0
        while (left_s := end_s - time.monotonic()) > 0:
            failure = engine.why_down(source)
            if failure is not None:
                raise failure
            try:
                answer = answers.get(timeout=min(left_s, 0.5))
            except queue.Empty:
                continue
            if answer.get("id") == order["id"]:
                return {k: v for k, v in answer.items() if k not in ("do", "id")}
    except TransportError as error:
        return {"error": str(error)}
    return {"error": "no answer in 150 s"}
