"""Schedules as files, and their cells."""

from __future__ import annotations

import csv
import io


def cells(text: str) -> list[list[str]]:
    """The cells of each row."""
    return list(csv.reader(io.StringIO(text)))


def text_of(rows: list[list[str]]) -> str:
    """The file of these cells."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


AS_LATE_AS_NEEDED = (
    "0UNSHARD,2UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1,"
    "0F2,0SEND_F2,2RECV_B0,2B0,2SEND_B0,0F3,0SEND_F3,2RECV_B1,2B1,2SEND_B1,2RECV_F2,2F2,2SEND_F2,"
    "0RECV_B0,0B0,2RECV_F3,2F3,2SEND_F3,0RECV_B1,0B1,2RECV_B2,2B2,2SEND_B2,2RECV_B3,2B3,2SEND_B3,"
    "2REDUCE_GRAD,2RESHARD,0RECV_B2,0B2,0RECV_B3,0B3,0REDUCE_GRAD,0RESHARD\n"
    "1UNSHARD,3UNSHARD,1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3B0,3SEND_B0,"
    "3RECV_F1,3F1,3B1,3SEND_B1,1RECV_F2,1F2,1SEND_F2,1RECV_B0,1B0,1SEND_B0,1RECV_F3,1F3,1SEND_F3,"
    "1RECV_B1,1B1,1SEND_B1,3RECV_F2,3F2,3B2,3SEND_B2,3RECV_F3,3F3,3B3,3SEND_B3,3REDUCE_GRAD,"
    "3RESHARD,1RECV_B2,1B2,1SEND_B2,1RECV_B3,1B3,1SEND_B3,1REDUCE_GRAD,1RESHARD\n"
)
"""Interleaved 1F1B of two ranks with every receive moved right before the compute that needs it, as
printed in PyTorch's pull request 172833. On two nodes it hangs (thread 172668): rank 0 is at its
second send, rank 1 at its first, and neither has come to a receive."""


def _swapped(text: str) -> str:
    first, second = cells(text)
    for number in range(len(second) - 1):
        if "SEND" in second[number] and "RECV" in second[number + 1]:
            second[number : number + 2] = second[number + 1], second[number]
    return text_of([first, second])


SWAPPED = _swapped(AS_LATE_AS_NEEDED)
"""The same with receives ahead of sends on the odd rank, the second deadlock of thread 172668:
3SEND_B0 waits for 2RECV_B0, which stands behind 0SEND_F2, whose receive stands behind 3SEND_B0."""
