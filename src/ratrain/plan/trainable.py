"""What a plan may say of unlike replicas, and processes cannot do yet."""

from __future__ import annotations

from dataclasses import replace

from ratrain.cost.algorithms import DIRECT
from ratrain.plan.uneven_setup import UnevenPlan, has_members


def untrainable(plan: UnevenPlan) -> list[tuple[str, str]]:
    """Why `ratrain train` cannot run a plan, each reason with what to write instead."""
    setup = replace(plan.setup, tied=plan.choices.tie)
    held = [sorted({*degrees}) for degrees in setup.sharing_degrees.values()]
    shares = setup.data > 1 or has_members(plan)  # else tied ends alone are held twice
    mixed = next((degrees for degrees in held if len(degrees) > 1 and shares), list[int]())
    who = "members" if has_members(plan) else "replicas"
    refused = [
        (
            bool(mixed) and plan.job.collective != DIRECT,
            f"{who} that hold a layer at tensor {' and '.join(map(str, mixed))} cannot reduce "
            f"it by the collective {plan.job.collective} yet",
            f'write collective "direct", or let all {who} hold each layer at one tensor degree',
        ),
        (
            bool(mixed) and plan.job.schedule.error_feedback,
            f"{who} that hold a layer at tensor {' and '.join(map(str, mixed))} cannot use "
            "error feedback yet",
            f"leave error_feedback out, or let all {who} hold each layer at one degree",
        ),
        (
            any(
                not replica.counts_of(rank)
                for replica in plan.replicas
                for rank in range(replica.ranks)
            )
            and plan.job.train.overflow == "unit",
            "a member that serves no micro-batch cannot say which of its units overflowed",
            'let it serve one, or write overflow "step"',
        ),
        (
            any(replica.layout.virtual > 1 for replica in plan.replicas),
            "replicas that differ cannot run with several stages on a device yet",
            "give each stage its own devices",
        ),
    ]
    return [(what, fix) for is_asked, what, fix in refused if is_asked]
