"""Closed forms: the paper's models (arXiv 2603.26438), and the same with the RTL's latencies.

n beats of 64 bytes, c columns, r rows, k batches; times in cycles. The published constants come
from the authors' experiment code; `rtl` forms are derived from the cycle-exact router (2 cycles
per router and direction) and are checked against the simulator in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, prod, sqrt

BEAT_BYTES = 64
SIZES_BYTES = tuple(1024 << i for i in range(6))
"""1 to 32 KiB: the sizes over which the published figures are geometric means."""

ALPHA_MEMORY = 30
ALPHA_CLUSTER = 17
ALPHA_STEP = 30
ALPHA_MULTICAST = 30
DELTA_MULTICAST = 36
DELTA_TREE_REDUCE = 30


def beats(size_bytes: float) -> int:
    return ceil(size_bytes / BEAT_BYTES)


def geomean(values: list[float]) -> float:
    return prod(values) ** (1 / len(values))


def levels(count: int) -> int:
    return int(log2(count))


def halves(extent: int) -> list[int]:
    """extent / 2, extent / 4, .. 1: the distances of a tree."""
    return [extent >> i for i in range(1, levels(extent) + 1)]


# ---- multicast ----


def multicast_hw(n: int, c: int, r: int) -> float:
    """alpha + n + c + r - 2 (eq 4 and 13; for one row n + c - 1)."""
    return ALPHA_MULTICAST + n + c + r - 2


def multicast_tree(n: int, c: int, r: int, *, with_distance: bool) -> float:
    """(30 + n) + a transfer and a synchronisation per level; the arXiv version adds 2 per hop."""
    steps = halves(c) + halves(r)
    hop = 2 if with_distance else 0
    transfers = sum(ALPHA_CLUSTER + hop * d + n for d in steps)
    return ALPHA_MEMORY + n + transfers + DELTA_MULTICAST * (len(steps) - 1)


def multicast_seq(n: int, c: int, r: int, batch: float) -> float:
    """(alpha + B) + steps (alpha + B + delta), for batches of B beats."""
    k = n / batch
    steps = k - 1 + c - 1 + (k - 1 + r - 1 if r > 1 else 0)
    return ALPHA_MEMORY + batch + steps * (ALPHA_STEP + batch + DELTA_MULTICAST)


def best_seq(n: int, c: int, r: int) -> float:
    """The better of the two divisors of n around B* = sqrt(n (alpha + delta) / steps)."""
    hops = c - 1 if r == 1 else c + r - 1
    wish = sqrt(n * (ALPHA_STEP + DELTA_MULTICAST) / hops)
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    low = max((d for d in divisors if d <= wish), default=1)
    high = min((d for d in divisors if d >= wish), default=n)
    return min(multicast_seq(n, c, r, b) for b in (low, high))


def multicast_sw(n: int, c: int, r: int, *, with_distance: bool) -> float:
    """The better of the pipelined chain and the tree."""
    return min(best_seq(n, c, r), multicast_tree(n, c, r, with_distance=with_distance))


@dataclass(frozen=True)
class MulticastRow:
    size_bytes: int
    seq: float
    tree: float
    hw: float

    @property
    def speedup(self) -> float:
        return min(self.seq, self.tree) / self.hw


def multicast_table(c: int, r: int, *, with_distance: bool) -> list[MulticastRow]:
    """The published comparison for 1 to 32 KiB."""
    return [
        MulticastRow(
            size,
            best_seq(beats(size), c, r),
            multicast_tree(beats(size), c, r, with_distance=with_distance),
            multicast_hw(beats(size), c, r),
        )
        for size in SIZES_BYTES
    ]


# ---- reduction ----


@dataclass(frozen=True)
class ReductionFit:
    """Constants fitted to runs that were never published: one point on a ridge of good fits."""

    a_m: float = 36
    a_c: float = 41
    a_hw: float = 117
    b_hw: float = 1.03
    b_c: float = 1.16


def reduce_tree(n: int, c: int, r: int, fit: ReductionFit) -> float:
    """Per level: copy, then k - 1 steps of copy beside addition, then an addition (eq 5)."""
    delta = DELTA_TREE_REDUCE
    k = max(1, round(sqrt(n / (delta + max(fit.a_m, fit.a_c)))))
    t_m, t_c = fit.a_m + n / k, fit.a_c + fit.b_c * n / k
    return (t_m + delta + (k - 1) * (max(t_m, t_c) + delta) + t_c) * levels(c * r)


def reduce_seq(n: int, c: int, r: int, fit: ReductionFit) -> float:
    """Chains along the rows, then along a column (eq 6 and 15, as the code counts the steps)."""
    delta = 4 * r + 28
    hops = 2 * c - 3 if r == 1 else 2 * (c + r) - 7
    k = max(1, round(sqrt(n * hops / ((1 if r == 1 else 2) * (delta + fit.a_c)))))
    t_m, t_c = fit.a_m + n / k, fit.a_c + fit.b_c * n / k
    steps = 1 + 2 * (c - 2) + k + (1 + 2 * (r - 2) + k if r > 1 else 0)
    return steps * (max(t_m, t_c) + delta) - delta


def reduce_hw(n: int, r: int, fit: ReductionFit) -> float:
    """One row phase, and a column phase if there are rows."""
    return (fit.a_hw + fit.b_hw * n) * (2 if r > 1 else 1)


def reduce_sw(n: int, c: int, r: int, fit: ReductionFit) -> float:
    return min(reduce_tree(n, c, r, fit), reduce_seq(n, c, r, fit))


def reduce_speedups(c: int, r: int, fit: ReductionFit) -> list[float]:
    return [reduce_sw(beats(s), c, r, fit) / reduce_hw(beats(s), r, fit) for s in SIZES_BYTES]


# ---- the RTL's latencies ----


def rtl_barrier(c: int, r: int) -> float:
    """20 + 4 per hop of the farthest cluster: store out and response back, 2 cycles each way."""
    return 20 + 4 * (c - 1 + r - 1)


def rtl_multicast(n: int, c: int, r: int) -> float:
    """21 + n + 4 per hop: write out, combined response back."""
    return 21 + n + 4 * (c - 1 + r - 1)


def rtl_multicast_tree(n: int, c: int, r: int) -> float:
    """As the published tree, with 4 per hop of a transfer's round trip and the true barrier.

    A tree of the whole mesh: one row and one column of it, as the GEMM models use it, have
    r = 1.
    """
    steps = halves(c) + halves(r)
    transfers = sum(ALPHA_CLUSTER + 4 * (d - 1) + n for d in steps)
    return ALPHA_MEMORY + n + transfers + rtl_barrier(c, r) * (len(steps) - 1)


def rtl_multicast_seq(n: int, c: int, r: int) -> float:
    """The best batch of a pipelined chain with neighbours at one hop and the true barrier."""
    delta = rtl_barrier(c, r)
    best = float("inf")
    for batch in (d for d in range(1, n + 1) if n % d == 0):
        k = n // batch
        steps = k - 1 + c - 1 + (k - 1 + r - 1 if r > 1 else 0)
        best = min(best, ALPHA_MEMORY + batch + steps * (ALPHA_STEP + batch + delta))
    return best


def rtl_multicast_sw(n: int, c: int, r: int) -> float:
    return min(rtl_multicast_seq(n, c, r), rtl_multicast_tree(n, c, r))


def slope(points: list[tuple[float, float]]) -> float:
    """Least-squares slope of (x, y)."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return covariance / sum((x - mean_x) ** 2 for x, _ in points)
