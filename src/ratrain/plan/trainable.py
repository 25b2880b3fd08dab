"""What a plan may say of unlike replicas, and processes cannot do yet."""

from __future__ import annotations

from ratrain.plan.uneven_setup import UnevenPlan


def untrainable(plan: UnevenPlan) -> list[tuple[str, str]]:
    """Why `ratrain train` cannot run a plan, each reason with what to write instead."""
    degrees = sorted({tensor for replica in plan.replicas for tensor in replica.tensor})
    refused = [
        (
            len(degrees) > 1,
            f"stages of tensor {degrees[0]} and {degrees[-1]} together cannot run yet",
            "use one tensor degree for all stages",
        ),
        (
            plan.mode.sharding == 3,
            "replicas that differ cannot run at sharding level 3 yet",
            "write sharding 2",
        ),
        (
            plan.mode.sharded_gradients,
            "replicas that differ cannot run with sharded accumulation yet",
            'write accumulation "local"',
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
