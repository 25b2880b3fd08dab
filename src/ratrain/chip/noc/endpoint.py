"""DMA engines, stores and barriers: what software asks for, as packets and work on a chip.

Every operation returns the events to wait for (a list of `After`). A write is bursts of one
address flit and up to 64 beats on `wide`, each answered on `rsp`; responses of a multicast are
combined on their way back, the response of a reduction is multicast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from ratrain.chip.noc.chip import ChipSpec
from ratrain.chip.noc.opcodes import Format, Opcode
from ratrain.chip.noc.workload import After, Place, Workload
from ratrain.errors import SpecError

Done = list[After]


@dataclass(frozen=True)
class Group:
    """An aligned submesh of clusters: every coordinate equal to the corner but for the mask."""

    corner: Place
    mask: Place

    @property
    def members(self) -> list[Place]:
        (x, y), (mx, my) = self.corner, self.mask
        return [(x + i, y + j) for j in range(my + 1) for i in range(mx + 1)]


def submesh(chip: ChipSpec, column: int, row: int, columns: int, rows: int) -> Group:
    """Clusters from (column, row) on; sizes are powers of two, the corner a multiple of them."""
    powers = all(size > 0 and not size & (size - 1) for size in (columns, rows))
    inside = column + columns <= chip.columns and row + rows <= chip.rows
    if not powers or not inside or column % columns or row % rows:
        raise SpecError(
            f"{columns}x{rows} clusters at ({column},{row}) of {chip.columns}x{chip.rows}",
            place="group",
            fix="use power-of-two sizes, and a corner that is a multiple of them",
        )
    return Group(chip.cluster(column, row), (columns - 1, rows - 1))


class System:
    """A chip with a workload under construction."""

    def __init__(self, chip: ChipSpec, *, memory_bytes: int = 0) -> None:
        self.chip = chip
        self.workload = Workload(chip.mesh, memory_bytes=memory_bytes)
        mesh = chip.mesh
        self._req, self._rsp, self._wide = (mesh.plane(n) for n in ("req", "rsp", "wide"))
        separate = chip.reads == "separate link"
        self._read = mesh.plane("wide reads") if separate else self._wide
        self._read_vc = 1 if chip.reads == "virtual channel" else 0
        self.with_values = memory_bytes > 0

    def copy(
        self, src: Place, dst: Place, read_at: int, write_at: int, size: int, after: Done
    ) -> Done:
        """`src` writes a range of its memory to `dst` and waits for the response."""
        ready = self._setup(src, self.chip.endpoint.dma_setup_cycles, after)
        done: Done = []
        for start, length in self._bursts(size):
            worm = self._write(
                src, dst, read_at + start, write_at + start, length, self._window(ready, done)
            )
            answer = self.workload.packet(dst, src, 1, plane=self._rsp, after=[After(worm)])
            done.append(After(answer))
        return done

    def load(
        self, dst: Place, row: int, read_at: int, write_at: int, size: int, after: Done
    ) -> Done:
        """`dst` reads from the memory tile of a row into its own memory."""
        tile = self.chip.memory_tile(row)
        ready = self._setup(dst, self.chip.endpoint.dma_setup_cycles, after)
        done: Done = []
        for start, length in self._bursts(size):
            beats = self._request_read(
                dst, tile, read_at + start, write_at + start, length, self._window(ready, done)
            )
            done.append(After(beats))
        return done

    def multicast(
        self,
        src: Place,
        group: Group,
        read_at: int,
        write_at: int,
        size: int,
        after: Done,
        *,
        from_memory_row: int | None = None,
    ) -> Done:
        """`src` writes to every member at once: its own memory, or a memory tile's as it reads."""
        endpoint = self.chip.endpoint
        setup = endpoint.dma_setup_cycles + endpoint.collective_setup_cycles
        ready = self._setup(src, setup, after)
        done: Done = []
        for start, length in self._bursts(size):
            before, stream, at = self._window(ready, done), None, read_at + start
            if from_memory_row is not None:
                tile = self.chip.memory_tile(from_memory_row)
                beats = self._request_read(src, tile, at, write_at + start, length, before)
                before, stream, at = [], After(beats, delay=1), write_at + start
            worm = self._write(
                src,
                group.corner,
                at,
                write_at + start,
                length,
                before,
                op=Opcode.MULTICAST,
                mask=group.mask,
                stream=stream,
            )
            done.append(self._collect_responses(src, group, worm))
        return done

    def reduce(
        self,
        group: Group,
        dst: Place,
        read_at: int,
        write_at: int,
        size: int,
        op: Opcode,
        form: Format,
        after: Mapping[Place, Done],
    ) -> dict[Place, Done]:
        """Every member writes its range to `dst`; the routers combine. When each member is done."""
        endpoint = self.chip.endpoint
        setup = endpoint.dma_setup_cycles + endpoint.collective_setup_cycles
        ready = {m: self._setup(m, setup, after.get(m, [])) for m in group.members}
        done: dict[Place, Done] = {m: [] for m in group.members}
        for start, length in self._bursts(size):
            first = None
            for member in group.members:
                worm = self._write(
                    member,
                    dst,
                    read_at + start,
                    write_at + start,
                    length,
                    self._window(ready[member], done[member]),
                    op=op,
                    form=form,
                    sources=group.mask,
                    leader=first,
                )
                first = worm if first is None else first
            assert first is not None
            answer = self._answer_all(dst, group, [After(first)])
            for member in group.members:
                done[member].append(After(answer, at=member))
        return done

    def barrier(self, group: Group, after: Mapping[Place, Done]) -> dict[Place, Done]:
        """One LsbAnd store of every member to the corner's counter, then a fence."""
        first = None
        for member in group.members:
            ready = self._setup(member, self.chip.endpoint.store_cycles, after.get(member, []))
            task = self.workload.packet(
                member,
                group.corner,
                2,
                op=Opcode.LSB_AND,
                sources=group.mask,
                plane=self._req,
                header_flits=1,
                group=first,
                after=ready,
            )
            first = task if first is None else first
        assert first is not None
        answer = self._answer_all(group.corner, group, [After(first)])
        return {m: [After(answer, at=m)] for m in group.members}

    def software_barrier(self, group: Group, after: Mapping[Place, Done]) -> dict[Place, Done]:
        """An atomic add by every member at the corner, one by one; then an interrupt to all."""
        endpoint, root = self.chip.endpoint, group.corner
        counted: Done = []
        for member in group.members:
            ready = self._setup(member, endpoint.store_cycles, after.get(member, []))
            request = self.workload.packet(member, root, 2, plane=self._req, after=ready)
            add = self.workload.work(
                root, endpoint.atomic_cycles, unit=("atomic", root), after=[After(request)]
            )
            counted.append(After(add))
        poll = self.workload.work(root, endpoint.poll_cycles, after=counted)
        wake = self.workload.packet(
            root,
            root,
            2,
            op=Opcode.MULTICAST,
            mask=group.mask,
            plane=self._req,
            after=[After(poll)],
        )
        return {m: [After(wake, at=m)] for m in group.members}

    def combine(
        self,
        place: Place,
        read_at: int,
        write_at: int,
        size: int,
        op: Opcode,
        form: Format,
        after: Done,
    ) -> Done:
        """The cores compute memory[write_at] = op(memory[write_at], memory[read_at])."""
        endpoint = self.chip.endpoint
        beats = ceil(size / self.chip.wide_bytes)
        cycles = endpoint.reduce_setup_cycles + endpoint.reduce_cycles_per_beat * beats
        task = self.workload.work(
            place,
            round(cycles),
            unit=("cores", place),
            op=op,
            form=form,
            read_at=read_at if self.with_values else -1,
            write_at=write_at if self.with_values else -1,
            size_bytes=size if self.with_values else 0,
            after=after,
        )
        return [After(task)]

    def wait(self, place: Place, cycles: int, after: Done) -> Done:
        """Time that software spends on one cluster."""
        return [After(self.workload.work(place, cycles, after=after))] if cycles else after

    # ---- the parts ----

    def _setup(self, place: Place, cycles: int, after: Done) -> Done:
        if after:
            return [After(a.task, at=a.at, delay=a.delay + cycles) for a in after]
        return self.wait(place, cycles, [])

    def _bursts(self, size: int) -> list[tuple[int, int]]:
        step = self.chip.endpoint.burst_bytes
        return [(at, min(step, size - at)) for at in range(0, size, step)]

    def _window(self, ready: Done, done: Sequence[After]) -> Done:
        """A burst waits for the set-up, and for the one that many transactions before it."""
        room = self.chip.endpoint.outstanding
        return [*ready, done[len(done) - room]] if len(done) >= room else list(ready)

    def _write(
        self,
        src: Place,
        dst: Place,
        read_at: int,
        write_at: int,
        size: int,
        after: Done,
        *,
        op: Opcode = Opcode.UNICAST,
        form: Format = Format.FP64,
        mask: Place = (0, 0),
        sources: Place = (0, 0),
        leader: int | None = None,
        stream: After | None = None,
    ) -> int:
        return self.workload.packet(
            src,
            dst,
            1 + ceil(size / self.chip.wide_bytes),
            op=op,
            form=form,
            mask=mask,
            sources=sources,
            plane=self._wide,
            group=leader,
            header_flits=1,
            read_at=read_at if self.with_values else -1,
            write_at=write_at if self.with_values else -1,
            size_bytes=size,
            after=after,
            stream=stream,
        )

    def _request_read(
        self, reader: Place, tile: Place, read_at: int, write_at: int, size: int, after: Done
    ) -> int:
        ask = self.workload.packet(reader, tile, 1, plane=self._req, after=after)
        return self.workload.packet(
            tile,
            reader,
            ceil(size / self.chip.wide_bytes),
            plane=self._read,
            vc=self._read_vc,
            read_at=read_at if self.with_values else -1,
            write_at=write_at if self.with_values else -1,
            size_bytes=size,
            after=[After(ask, delay=self.chip.endpoint.memory_latency_cycles)],
        )

    def _collect_responses(self, src: Place, group: Group, worm: int) -> After:
        """Each member answers when the worm has reached it; the routers merge the answers."""
        first = None
        for member in group.members:
            task = self.workload.packet(
                member,
                src,
                1,
                op=Opcode.COLLECT_B,
                sources=group.mask,
                plane=self._rsp,
                group=first,
                after=[After(worm, at=member)],
            )
            first = task if first is None else first
        assert first is not None
        return After(first)

    def _answer_all(self, src: Place, group: Group, after: Done) -> int:
        return self.workload.packet(
            src, group.corner, 1, op=Opcode.MULTICAST, mask=group.mask, plane=self._rsp, after=after
        )
