"""Full-graph training of graph networks beyond memory: exact, partition by partition, with what
does not fit on disk meanwhile. An epoch is a program of the house's form: unit by unit, a partition
in the place of the micro-batch.

- `spec`, `csr`, `generate`, `read`: GRAPH.toml, the graph it names or generates;
- `partition`, `blocks`, `share`: the graph cut, its matrix by pairs of partitions, and partitions
  divided among processes;
- `units`, `trace`: what a network is made of, and what an epoch computes in which order;
- `cells`, `program`, `prove`, `clock`, `plan`: memory by cells, the program of an epoch, its proof,
  its time, and the layout of the fewest bytes;
- `network`, `spmm`, `execute`, `train`, `saved`: in torch, on lanes, with checkpoints; `process`,
  `links`: other processes and what goes to them; `calibrate` times this machine before the first
  epoch;
- `reference`, `compare`: the same in memory, and both side by side.

What plans imports no torch.
"""

from __future__ import annotations

from ratrain.graph.plan import Candidate, Laid, Plan, lay_out, planned
from ratrain.graph.program import MODES
from ratrain.graph.spec import GraphFile, read_graph_file

__all__ = [
    "MODES",
    "Candidate",
    "GraphFile",
    "Laid",
    "Plan",
    "lay_out",
    "planned",
    "read_graph_file",
]
