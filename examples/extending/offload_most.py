from dataclasses import replace

from ratrain.program.kind import Kind, Lane
from ratrain.program.program import Program
from ratrain.program.replicas import Member
from ratrain.program.strategies import declare_pass


def offload_most(program: Program) -> Program:
    """Inputs of recovered units wait for backward in host memory, but on the last stage."""

    def offloading(member: Member, is_last: bool) -> Member:
        away = member.recovery.again and not is_last
        return replace(member, activation_tier="host" if away else "")

    setup = program.setup.with_members(offloading)
    changed = program.with_setup(setup)

    def copies(rank, lane, actions):
        yield from actions
        first_use, copy = Kind.F, Kind.OffloadInput
        if lane is Lane.FETCH:
            first_use, copy = Kind.R, Kind.FetchInput
        held = dict(changed.held_by(rank))
        for action in program.lane(rank, Lane.COMPUTE):
            member = held[action.stage]
            is_first_unit = (action.stage, action.unit) == (0, 0)  # it has no input
            if action.kind is first_use and member.activation_tier and not is_first_unit:
                if member.units[action.unit].recoverable:
                    yield action._replace(kind=copy)

    return program.edit("offload-most", Lane.OFFLOAD, Lane.FETCH, by=copies, setup=setup)


declare_pass("offload-most", offload_most)
