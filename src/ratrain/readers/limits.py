"""How large, how deep and how long anything may be that is read.

They are far above what anybody needs and far below what makes a reader slow or a machine swap.
"""

from __future__ import annotations

MIB = 1 << 20

TOML_BYTES = 2 * MIB
"""A job or cluster file: 20,000 hosts of different kinds take half of this."""
JSON_BYTES = 64 * MIB
"""A plan, a config.json, an index of weights, a run's facts."""
TIMELINE_BYTES = 1024 * MIB
"""Timelines, metrics and records: they grow with ranks, ops and steps."""
PROGRAM_BYTES = 256 * MIB
"""A program's text or its CSV: some 30 million ops."""
TABLE_BYTES = 64 * MIB
"""A table of measured runs."""
LINE_BYTES = 256 * MIB
"""A line of JSON lines. A longer one is more likely a file of another kind."""
TOKENIZER_BYTES = 256 * MIB
SMALL_BYTES = MIB
"""Secrets, certificates, addresses: what fits on a page."""
TENSOR_HEADER_BYTES = 100 * 1000 * 1000
"""What the safetensors library allows."""

DEPTH = 64
"""Tables and lists inside one another."""
DIGITS = 40
"""Of one number. The largest quantity in use, 10^24 FLOP, has 25."""
NAME_BYTES = 255
"""Of one part of a path, as file systems have it."""
CELL_CHARS = 4096
"""Of one cell of a CSV file."""
ERRORS = 20
"""Shown of one input at once."""
