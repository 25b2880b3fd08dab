"""The heart: a training step as a program over states.

Read in this order: `kind` (how kinds of op are declared) and `kinds/` (what each reads, writes and
frees), `actions` (the words), `setup` (what the words are about), `families` (the states),
`program` (lanes of words), `skeletons` and `passes` (how programs are made), `strategies` (named
combinations), `table` (the same program as columns, for machines), `verify` and `bounds` (what is
proved before anything runs), `text`, `csv` and `grid` (how people and other tools see it);
`pipelining/` (schedules of other people, checked as they are written).
"""

from ratrain.program import kinds  # declares the built-in kinds of op

__all__ = ["kinds"]
