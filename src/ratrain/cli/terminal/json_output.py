"""What `--json` prints: one JSON document on stdout, which says what it is. docs/reference/json.md
lists its keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

VERSION = 1
"""Of every document. It rises when a key goes, or changes its meaning; further keys may come."""


def print_json(verb: str, body: Mapping[str, Any]) -> None:
    """Prints the answer of a verb: "simulate", "net check"; or "error"."""
    click.echo(json.dumps({"schema": f"ratrain {verb} {VERSION}", **body}, indent=2))
