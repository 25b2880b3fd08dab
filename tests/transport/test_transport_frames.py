"""The frame parser against nonsense, and against sound frames cut anywhere."""

from __future__ import annotations

import socket
import threading

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.errors import RatrainError, SpecError
from ratrain.transport.engine.channel import Landing
from ratrain.transport.loop.driver import Driver
from ratrain.transport.memory.rows import Rows
from ratrain.transport.providers.stream import StreamChannel
from ratrain.transport.wire import frames
from ratrain.transport.wire.address import Address, Descriptor
from ratrain.transport.wire.frames import FrameError, Head

U8, U32, U64 = (st.integers(0, (1 << n) - 1) for n in (8, 32, 64))
HEADS = st.builds(
    Head,
    kind=st.integers(0, 12),
    flags=st.integers(0, 9),
    version=st.sampled_from([1, 1, 1, 0, 2]),
    imm=U32,
    pages=st.one_of(st.integers(0, 5), U32),
    page_len=st.one_of(st.integers(0, 5), U32),
    tid=U64,
    floor=U64,
    total=st.one_of(st.integers(0, 5000), U64),
    key=U64,
    offset=U64,
    start=st.one_of(st.just(0), U64),
    size=st.one_of(st.integers(0, 5000), U64),
)


class Sink:
    """A receiver that lets pieces land in a small buffer and remembers how it ended."""

    def __init__(self) -> None:
        self.space = bytearray(frames.MAX_PIECE_BYTES)
        self.ended: list[bytes] = []
        self.controls = 0
        self.reason = ""

    def take(self, head: Head, data: memoryview) -> bool:
        if head.key % 4:
            return False
        self.ended.append(bytes(data))
        return True

    def begin(self, head: Head, extra: bytes) -> Landing:
        assert len(extra) == head.list_bytes
        landing = Landing(head, live=head.key % 2 == 0)
        landing.view = memoryview(self.space)[: head.size]
        return landing

    def end(self, landing: Landing, failed: int = 0) -> None:
        assert landing.view is not None
        self.ended.append(bytes(landing.view))

    def control(self, head: Head, extra: bytes) -> None:
        self.controls += 1

    def down(self, reason: str, *, reset: bool) -> None:
        self.reason = reason


def feed(data: bytes, cuts: list[int]) -> tuple[Sink, StreamChannel]:
    """What a channel makes of `data`, arriving in parts."""
    driver = Driver(threading.RLock())
    ours, theirs = socket.socketpair()
    channel, sink = StreamChannel(driver, ours, "sock", "test"), Sink()
    channel.attach(sink, reads_peer=False)
    at = 0
    for cut in [*sorted(c % (len(data) + 1) for c in cuts), len(data)]:
        try:
            theirs.sendall(data[at:cut])
        except OSError:
            break
        at = cut
        channel._on_events(1)
    theirs.close()
    if not channel.closed:
        channel._on_events(1)
    for call in driver._later:
        call()
    channel.close()
    driver.stop()
    return sink, channel


NONSENSE = st.one_of(
    st.binary(max_size=400),
    st.lists(HEADS, max_size=4).map(lambda heads: b"".join(map(frames.pack, heads))),
)


@settings(max_examples=150, deadline=None)
@given(data=NONSENSE, cuts=st.lists(U32, max_size=4))
def test_nonsense_closes_the_connection_and_never_raises_or_grows(
    data: bytes, cuts: list[int]
) -> None:
    sink, channel = feed(data, cuts)
    assert channel.closed
    assert sink.reason
    assert len(channel._buf) <= frames.MAX_PAGES * 16 + 32768


@settings(max_examples=100, deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=40_000), min_size=1, max_size=4),
    cuts=st.lists(U32, max_size=6),
    key=U64,
)
def test_sound_frames_cut_anywhere_land_whole(
    payloads: list[bytes], cuts: list[int], key: int
) -> None:
    stream = b"".join(
        frames.pack(Head(frames.WRITE, tid=i, total=len(p), key=key & ~1, size=len(p)))
        + p
        + frames.pack(Head(frames.PING))
        for i, p in enumerate(payloads)
    )
    sink, _ = feed(stream, cuts)
    assert sink.ended == payloads
    assert sink.controls == len(payloads)


@given(head=HEADS)
def test_a_header_is_refused_or_within_all_bounds(head: Head) -> None:
    try:
        known = frames.unpack(frames.pack(head))
    except FrameError:
        return
    assert known == head
    assert len(frames.pack(head)) == frames.HEAD_BYTES
    assert known.payload_bytes <= frames.MAX_PIECE_BYTES
    assert known.list_bytes <= frames.MAX_PAGES * 16


@given(data=st.binary(max_size=200))
def test_damaged_addresses_and_descriptors_are_spec_errors(data: bytes) -> None:
    for parse in (Address.from_bytes, Descriptor.from_bytes):
        try:
            parse(data)
        except RatrainError as error:
            assert isinstance(error, SpecError)


def test_pages_received_in_drips_fill_exactly_their_places() -> None:
    target = np.zeros(1000, np.uint8)
    iov = np.array([[target.ctypes.data + 10 * i, 7] for i in range(50)], np.uint64)
    pages, data = Rows(iov), bytes(range(1, 251)) + bytes(range(1, 101))
    at = 0
    for size in (1, 6, 7, 13, 100, 223):
        pages.put(memoryview(data)[at : at + size])
        at += size
    assert at == 350
    want = np.zeros(1000, np.uint8)
    for i in range(50):
        want[10 * i : 10 * i + 7] = np.frombuffer(data[7 * i : 7 * i + 7], np.uint8)
    assert (target == want).all()
