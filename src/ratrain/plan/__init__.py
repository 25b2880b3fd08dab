"""From a job to a program with costs: which ranks hold what, how large it is, how long it takes.

Read in this order: `placement` (which device is which rank), `sizes` (units and their bytes),
`durations` (their times and links), `enumerate` (every configuration), `held` and `bill` (their
memory), `estimate` (their step), `build` (one as a program), `search` (the three phases), `misfit`
and `explain` (why), `plan_file` (the plan as JSON; `plan_writing`, `plan_job` and `plan_layout`
beside it), `case` (a job or plan, ready to simulate), `schedules` (every named order on a
job), `order_search` (one found beyond them), in turn made of `order_seeds`,
`order_moves`, `order_clock` and `order_board`; `searched_order` makes it ready.
On unequal devices: `left_out` (who may stay idle), `unequal_pools` and `unequal_stages` (shapes of
replicas, what their stages take), `unequal_parts` and `unequal_mixes` (drafts of plans, ranked),
`unequal_build` and `unequal_trial` (one on its devices, proved and simulated), `unequal_changes`
and `unequal_search`; `every_plan` (both searches of a job).
"""
