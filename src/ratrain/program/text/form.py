"""What the text form looks like, and the largest numbers in it.

    ratrain program 1
    passes 1f1b recover-at-backward
    sharding 2
    ...
    unit a 404_766_720 809_533_440 ...          one line per kind of unit: its bytes
    replica 0 micro_batches 8 count 16
    stage 0 rank 0 recovery none output_bytes 20_971_520 units a:e b:0..3
    stage 1..14 rank 1..14 recovery none output_bytes 20_971_520 units b:4..59
    rank 0 compute 0.0F0 0.1F0 ...              one line per rank and lane

`b:4..59` are units named 4 to 59, each of kind b; stages written on one line share them evenly.
A stage of several members has a line for each, with the micro-batches that it `serves`. A member's
`tensor` degree is written where the header's is not everybody's. Of a long program that repeats
itself the text is short: `repeats 2 998` says that what is in each lane between `(` and `)` is
there 998 times more, each time with micro-batches that are 2 later.
`#` starts a comment. Fields of the header that are left out have their defaults. Names with
characters that the form needs itself are written with %-escapes; `%` alone is the empty name.
"""

from __future__ import annotations

FORMAT, VERSION = "ratrain program", 1
SIZES = ("view_bytes", "gradient_bytes", "optimizer_bytes", "input_bytes", "saved_bytes")
FLAGS = ("recoverable", "head")
YES_OR_NO = (*FLAGS, "frozen")
"""The columns of a unit line: sizes, then yes or no."""
WHERE_ANY = ("scratch_bytes", "scores_bytes", "frozen", "copy_bytes", "mirror_bytes")
"""Last columns, as far as any unit has some."""
MOST_BYTES, MOST_COUNT, MOST_UNITS = 1 << 53, 1_000_000, 200_000
"""The largest size, number of anything, and number of units that are read."""
