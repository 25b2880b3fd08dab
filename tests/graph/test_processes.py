"""A graph's training in several processes: what they exchange, and that it is the same training."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graph_made import KINDS, OF_SEVERAL, drawn_graph, file_of, laid_out, tight, worst_error
from hypothesis import given, settings
from hypothesis import strategies as st

from ratrain.errors import PeerDown, ProgramError, SpecError
from ratrain.graph.clock import Rates, clocked
from ratrain.graph.links import Links, connected
from ratrain.graph.plan import lay_out, planned
from ratrain.graph.program import ONE_SUM, RECEIVE_LANE, SEND_LANE
from ratrain.graph.prove import Columns, prove
from ratrain.graph.spec import GraphSource, MemoryKeys
from ratrain.program.verify import Rule


def exchanging(kind: str = "gcn", mode: str = "bypass", processes: int = 2) -> Columns:
    """The proved programs of processes that have little memory."""
    spec = file_of(kind, memory={"processes": processes})
    return tight(laid_out(spec, drawn_graph(1), 6), mode, 1)


def with_ops(columns: Columns, process: int, ops: list[int]) -> Columns:
    """The same, but of one process these ops alone, in this order."""
    programs = list(columns.programs)
    old = programs[process]
    programs[process] = replace(old, ops=tuple(old.ops[at] for at in ops))
    return Columns(tuple(programs))


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("mode", OF_SEVERAL)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_several_processes_are_those_in_memory_in_every_epoch(
    kind: str, mode: str, processes: int, tmp_path: Path
) -> None:
    spec = file_of(kind, memory={"processes": processes}, directed=processes == 3)
    laid = laid_out(spec, drawn_graph(1, directed=processes == 3), 7)
    columns = tight(laid, mode, 2)
    assert all(program.sent_bytes > 0 for program in columns.programs)
    assert worst_error(spec, laid, columns, tmp_path) < 1e-12


@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(KINDS),
    mode=st.sampled_from(OF_SEVERAL),
    parts=st.integers(2, 9),
    processes=st.integers(2, 4),
    group=st.integers(1, 3),
    directed=st.booleans(),
    cells=st.integers(48, 90),
)
@settings(max_examples=40, deadline=None)
def test_no_process_waits_for_ever_however_little_memory_there_is(
    seed: int,
    kind: str,
    mode: str,
    parts: int,
    processes: int,
    group: int,
    directed: bool,
    cells: int,
) -> None:
    spec = file_of(kind, directed=directed, memory={"processes": min(processes, parts)})
    laid = laid_out(spec, drawn_graph(seed, directed=directed), parts, seed)
    columns = tight(laid, mode, group, cells)  # proves it
    assert clocked(columns, Rates(1e9, 1e9)).end_s.max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_exchange_is_needed(kind: str) -> None:
    columns = exchanging(kind)
    for process, program in enumerate(columns.programs):
        numbers = range(len(program.ops))
        moves = [at for at in numbers if program.ops[at].lane in (SEND_LANE, RECEIVE_LANE)]
        assert moves
        for gone in [*moves, next(at for at in numbers if program.ops[at].item.verb == "sum")]:
            left = [at for at in numbers if at != gone]
            assert prove(with_ops(columns, process, left)), program.ops[gone].word


def test_processes_that_send_and_receive_in_other_orders_wait_for_ever() -> None:
    columns = exchanging()
    ops = columns.program.ops
    sends = [at for at, op in enumerate(ops) if op.lane == SEND_LANE]
    order = list(range(len(ops)))
    order[sends[0]], order[sends[-1]] = sends[-1], sends[0]
    found = prove(with_ops(columns, 0, order))
    assert Rule.DEADLOCK in {finding.rule for finding in found}


def test_rows_that_nobody_else_needs_are_not_sent() -> None:
    columns = exchanging(processes=3)
    for program in columns.programs:
        shape = program.shape
        for op in program.ops:
            if op.lane == SEND_LANE:
                rows = int(shape.boundary[op.item.part, op.item.source])
                assert 0 < rows <= shape.sizes[op.item.part]
                assert (
                    op.size_bytes == rows * shape.columns(op.item.reads[0].family, op.item.unit) * 8
                )


def test_each_process_has_the_edges_of_its_own_nodes_alone() -> None:
    spec = file_of("gcn", memory={"processes": 3})
    laid = laid_out(spec, drawn_graph(2), 7)
    shares = [laid.of(process) for process in range(3)]
    assert sum(sum(b.entries for b in share.forward.values()) for share in shares) == sum(
        block.entries for block in laid.forward.values()
    )
    for share in shares:
        for (_, source), block in share.forward.items():
            assert block.columns.max() < share.shape.rows(source)


def test_more_processes_than_partitions_are_refused(tmp_path: Path) -> None:
    spec = file_of("gcn", memory={"processes": 4, "parts": 3})
    spec = replace(spec, graph=GraphSource(generate="planted", nodes=100))
    with pytest.raises(SpecError, match="4 processes divide 3 partitions") as error:
        lay_out(spec, tmp_path)
    assert error.value.place == "[memory] processes"


@pytest.mark.parametrize("mode", ONE_SUM)
def test_a_way_of_using_memory_that_is_for_one_process_is_refused_to_several(mode: str) -> None:
    spec = file_of("gcn", memory={"processes": 2, "mode": mode})
    with pytest.raises(SpecError, match=f"{mode} is for one process") as error:
        planned(laid_out(spec, drawn_graph(1), 4), spec.memory, Path("/"))
    assert error.value.place == "[memory] mode"


def test_partitions_are_cut_for_every_process_where_none_are_asked_for(tmp_path: Path) -> None:
    spec = file_of("gcn")
    memory = MemoryKeys(1 << 40, processes=3, partitioner="own")
    spec = replace(spec, graph=GraphSource(generate="planted", nodes=300), memory=memory)
    laid = lay_out(spec, tmp_path)
    assert laid.shape.parts % 3 == 0
    assert {*laid.shape.owner.tolist()} == {0, 1, 2}


def test_another_message_than_is_waited_for_is_an_error() -> None:
    one, other = (Links(process, ends) for process, ends in enumerate(connected(2)))
    one.send(1, "activation.1.3", 4, (b"abcd",))
    with pytest.raises(ProgramError, match=r"'activation.1.3', and process 1 waits for 4"):
        other.receive(0, "activation.1.4", memoryview(bytearray(4)))
    one.close()


def test_who_waits_for_a_process_that_has_gone_is_told() -> None:
    one, other = (Links(process, ends) for process, ends in enumerate(connected(2)))
    told: list[BaseException] = []

    def wait() -> None:
        try:
            other.receive(0, "gradients", memoryview(bytearray(8)))
        except PeerDown as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    one.close()
    waiting.join(20)
    assert len(told) == 1
    with pytest.raises(PeerDown):
        other.send(0, "gradients", 1 << 20, (bytes(1 << 20),))
    other.close()


def test_more_than_connections_hold_is_gathered_by_all_at_once() -> None:
    ends: list[dict[int, socket.socket]] = connected(3)
    links = [Links(process, sockets) for process, sockets in enumerate(ends)]
    gathered: dict[int, list[float]] = {}

    def gather(process: int) -> None:
        rows = links[process].gather("rows", np.full(1 << 18, process + 1.0))
        gathered[process] = [float(row.sum()) / (1 << 18) for row in rows]

    threads = [threading.Thread(target=gather, args=(process,)) for process in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert gathered == {process: [1.0, 2.0, 3.0] for process in range(3)}
    for each in links:
        each.close()
