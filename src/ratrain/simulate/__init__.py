"""A program on a clock.

Read in this order: `costs` (how long each op takes, and over which links), `engine` (the event
loop; engine.c is its compiled twin), `result` and `waiting` (what came out, itemised),
`simulate` (the three put together), `critical` (the chain of ops that decides the step time).
"""
