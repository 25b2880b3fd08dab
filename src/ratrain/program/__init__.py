"""The heart: a training step as a program over states.

Read in this order: `actions` (the words), `setup` (what the words are about), `rules` (what
each word reads, writes and frees), `program` (lanes of words), `skeletons` and `passes` (how
programs are made), `strategies` (named combinations), `table` (the same program as columns,
for machines), `verify` and `bounds` (what is proved before anything runs), `text`, `csv` and
`grid` (how people and other tools see it).
"""
