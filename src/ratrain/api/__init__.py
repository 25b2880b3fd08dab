"""RATrain from Python: what `ratrain.load_job`, `plan`, `build`, `verify`, `simulate`, `train` and
`report` do and return. `ratrain/__init__.py` lists the names; docs/how-to/python.md shows them at
work.

Every result is a frozen value. Printed it is what the command line prints; in a notebook it is a
table or a picture; `to_dict` gives the figures, as `--json` does. The rooms' own types are one
attribute away (`job.spec`, `plans.planned`, `built.case`, `proof.verdict`,
`prediction.simulation`).
"""
