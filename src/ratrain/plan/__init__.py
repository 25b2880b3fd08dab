"""From a job to a program with costs: which ranks hold what, how large it is, how long it takes.

Read in this order: `placement` (which device is which rank), `sizes` (units and their bytes),
`durations` (their times and links), `enumerate` (every configuration), `held` and `bill` (their
memory), `estimate` (their step), `build` (one as a program), `search` (the three phases), `misfit`
and `explain` (why), `file.form` (the plan as JSON; `file.writing`, `file.job` and `file.layout`
beside it), `case` (a job or plan, ready to simulate), `schedules` (every named order on a
job), `orders.search` (one found beyond them), in turn made of `orders.seeds`,
`orders.moves`, `orders.clock` and `orders.board`; `searched_order` makes it ready.
On unequal devices: `left_out` (who may stay idle), `search.pools` and `search.stages` (shapes of
replicas, what their stages take), `search.parts` and `search.mixes` (drafts of plans, ranked),
`search.on_devices` and `search.trial` (one on its devices, proved and simulated), `search.changes`
and `search.unequal`; `every_plan` (both searches of a job).
"""
