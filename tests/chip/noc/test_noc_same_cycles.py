"""The compiled core and the plain Python model are the same machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noc_golden import values_of
from noc_reference import Reference

from ratrain.chip.noc.mesh import Run, run
from ratrain.chip.noc.opcodes import FP_OPCODES, INT_OPCODES, Format, Opcode
from ratrain.chip.noc.spec import MeshSpec, Plane, RouterSpec
from ratrain.chip.noc.workload import After, Place, Workload

ROUTERS = st.builds(
    RouterSpec,
    input_fifo_flits=st.integers(1, 4),
    output_fifo_flits=st.integers(1, 4),
    virtual_channels=st.integers(1, 3),
    link_stages=st.integers(0, 2),
    reduction_latency_cycles=st.integers(0, 5),
    reduction=st.sampled_from(["rtl080", "lossy", "kinput", "ideal"]),
    fork=st.sampled_from(["async", "lockstep"]),
    core_fpu_load=st.sampled_from([0.0, 0.3, 0.75]),
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Any mixture of unicasts, multicasts, reductions and work, with dependencies."""
    columns, rows = draw(st.sampled_from([(2, 2), (4, 2), (4, 4), (3, 3), (1, 4)]))
    router = draw(ROUTERS)
    planes = draw(st.sampled_from([(Plane("a", 8),), (Plane("a", 64), Plane("b", 8))]))
    mesh = MeshSpec(
        columns, rows, planes=planes, router=router, origin_x=draw(st.sampled_from([0, 4]))
    )
    w = Workload(mesh, memory_bytes=1024)
    w.memory[:] = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, w.memory.shape)
    places = [mesh.place(i) for i in range(mesh.nodes)]
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["unicast", "multicast", "reduction", "work", "stream"]))
        after = draw_after(draw, w)
        common = {
            "plane": draw(st.integers(0, len(planes) - 1)),
            "read_at": draw(st.sampled_from([-1, 0])),
            "write_at": 512,
            "after": after,
            "at": draw(st.integers(0, 9)),
        }
        src, dst = draw(st.sampled_from(places)), draw(st.sampled_from(places))
        flits, header = draw(st.integers(1, 7)), draw(st.integers(0, 1))
        if kind == "unicast":
            vc = draw(st.integers(0, router.virtual_channels - 1))
            w.packet(src, dst, flits + header, header_flits=header, vc=vc, **common)
        elif kind == "stream":
            first = w.packet(src, dst, flits, **common)
            del common["after"]
            onward = draw(st.sampled_from(places))
            delay = draw(st.integers(0, 3))
            w.packet(
                dst, onward, flits + 1, header_flits=1, stream=After(first, delay=delay), **common
            )
        elif kind == "multicast":
            mask = draw_mask(draw, mesh)
            w.packet(src, dst, flits, op=Opcode.MULTICAST, mask=mask, **common)
        elif kind == "work":
            op, form = draw_op(draw)
            w.work(
                src,
                draw(st.integers(0, 20)),
                unit=draw(st.sampled_from([None, "u"])),
                op=op,
                form=form,
                read_at=0,
                write_at=256,
                size_bytes=64,
                after=after,
            )
        else:
            add_reduction(draw, w, dst, flits, common)
    return w


def draw_after(draw: st.DrawFn, w: Workload) -> list[After]:
    if not len(w) or draw(st.booleans()):
        return []
    task = draw(st.integers(0, len(w) - 1))
    spot = draw(st.sampled_from([None, *w.destinations(task)]))
    return [After(task, at=spot, delay=draw(st.integers(0, 5)))]


def draw_mask(draw: st.DrawFn, mesh: MeshSpec) -> Place:
    masks = {1: [0], 2: [0, 1], 3: [0], 4: [0, 1, 2, 3]}
    return (
        draw(st.sampled_from(masks[mesh.columns])),
        draw(st.sampled_from(masks[mesh.rows])),
    )


def draw_op(draw: st.DrawFn) -> tuple[Opcode, Format]:
    form = draw(st.sampled_from(list(Format)))
    table = FP_OPCODES if form.is_float else INT_OPCODES
    return draw(st.sampled_from(list(table.values()))), form


def add_reduction(
    draw: st.DrawFn, w: Workload, dst: Place, flits: int, common: dict[str, object]
) -> None:
    mask_x, mask_y = draw_mask(draw, w.mesh)
    op, form = draw_op(draw)
    op = draw(st.sampled_from([op, Opcode.LSB_AND, Opcode.COLLECT_B, Opcode.SEQ_AW]))
    x0, y0 = draw(st.sampled_from([w.mesh.place(i) for i in range(w.mesh.nodes)]))
    members = [
        (x, y)
        for x, y in (w.mesh.place(i) for i in range(w.mesh.nodes))
        if (x ^ x0) & ~mask_x == 0 and (y ^ y0) & ~mask_y == 0
    ]
    group, header = None, draw(st.integers(0, 1))
    for place in members:
        task = w.packet(
            place,
            dst,
            flits + header,
            header_flits=header,
            op=op,
            form=form,
            sources=(mask_x, mask_y),
            group=group,
            **common,  # type: ignore[arg-type]
        )
        group = task if group is None else group


def same(w: Workload) -> Run:
    model = Reference(w)
    expected = model.run()
    r = run(w, check=False)
    assert r.status == expected
    assert r.deliveries.tolist() == [list(d) for d in model.deliveries]
    for name in ("injected_at", "first_at", "last_at"):
        assert getattr(r, name).tolist() == [t.row[name] for t in model.tasks], name
    assert r.ejected_flits == model.ejected
    assert (w.memory == model.memory).all()
    return r


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(workloads())
def test_core_and_reference_agree_on_cycles_values_and_faults(w: Workload) -> None:
    same(w)


def test_they_agree_on_a_busy_mesh() -> None:
    rng = np.random.default_rng(1)
    w = Workload(MeshSpec(4, 4, planes=(Plane("a", 8),)), memory_bytes=64)
    values_of(w, 4)
    for _ in range(300):
        src, dst = (w.mesh.place(int(i)) for i in rng.integers(0, 16, 2))
        w.packet(
            src, dst, int(rng.integers(1, 5)), read_at=0, write_at=32, at=int(rng.integers(60))
        )
    assert same(w).status == "done"
