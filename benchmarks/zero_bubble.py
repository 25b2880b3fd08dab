"""Published and computed bubble rates side by side: 1F1B, interleaved 1F1B and ZB-H1.

    python benchmarks/zero_bubble.py

Published: Qi et al. 2023, arXiv 2401.10241. `interleaved, all wait` is our schedule, in which
every tensor that goes from the last rank back to the first takes T_comm; `as published` leaves
out the waits that the paper's own program leaves out (`ratrain.reproduce.zero_bubble`).
"""

from __future__ import annotations

from ratrain.reproduce.zero_bubble import Setting, bubble_rate, settings

COLUMNS = (
    ("1F1B", "1f1b", False),
    ("ZB-H1", "zb-h1", False),
    ("interleaved, as published", "interleaved", True),
    ("interleaved, all wait", "interleaved", False),
)


def main() -> None:
    """Prints a table for each schedule."""
    rows = settings()
    for title, skeleton, as_published in COLUMNS:
        print(f"{title:28}{'m':>5}{'published':>12}{'ours':>10}{'difference':>13}")
        for row in rows:
            print(_line(row, skeleton, as_published))
        print()


def _line(row: Setting, skeleton: str, as_published: bool) -> str:
    published = row.published[skeleton]
    ours = bubble_rate(row, skeleton, as_published=as_published)
    label = f"  {row.model}, {row.ranks} ranks"
    return f"{label:28}{row.micro_batches:5d}{published:12.4f}{ours:10.4f}{ours - published:+13.4f}"


if __name__ == "__main__":
    main()
