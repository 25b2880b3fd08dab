"""Schedules of `torch.distributed.pipelining`, read as they are written and proved.

Read in this order: `cells` (what a cell says), `reading` (a file as cells), `messages` (which send
belongs to which receive), `findings`, `work` and `weights` (what is wrong however messages queue),
`queues` (who waits for whom under a rule of how they queue, and for how long), `stops` (why a
schedule stops), `buffers` (receive buffers), `check` (all of it), `words` and `figures` (how it is
told), `mended` and `repair` (a schedule in which nothing is wrong). `fixed`: a file as the compute
order of a job.

docs/how-to/checker.md says under which model this proves what.
"""
