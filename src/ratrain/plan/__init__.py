"""From a job to a program with costs: which ranks hold what, how large it is, how long it takes.

`placement` (which device is which rank), `sizes` (units and their bytes), `durations` (their
times, and the links between them), `case` (all of it for one job, and what memory decides).
The search over layouts comes to this room as well.
"""
