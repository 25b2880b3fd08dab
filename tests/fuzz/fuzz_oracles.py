"""What must be true of every answer, whatever the input."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

STATUSES = {0, 1, 2, 3, 4, 5, 6, 7, 8}
SILENT = {
    "verify": {3, 4},
    "simulate": {3},
    "explain": {3},
    "report": {3},
    "checkpoints": {1, 7},
    "compare": {1},
}
"""Statuses of verbs that tell on standard output what they found, without an error."""
SILENT_NET = {5}
SIGNED = (
    "difference",
    "error",
    "bias",
    "gap",
    "ratio",
    "slope",
    "start_s",
    "correlation",
    "predicted_s",
)
"""Figures that may be below zero."""


@dataclass(frozen=True)
class Answer:
    """What a command line came to. `failure`: "traceback", "hang", "died", or ""."""

    status: int | None
    out: str
    err: str
    failure: str = ""
    detail: str = ""
    cpu_s: float = 0.0


def problems(arguments: list[str], answer: Answer, named: tuple[str, ...]) -> list[tuple[str, str]]:
    """(kind, detail) of each rule that an answer breaks; `named`: one of these a place must name,
    where there are any."""
    if answer.failure:
        return [(answer.failure, answer.detail)]
    said: list[tuple[str, str]] = []
    if answer.status not in STATUSES:
        said.append(("status", f"{answer.status}"))
    if "Traceback" in answer.err or "panicked" in answer.err:
        said.append(("traceback", answer.err[-400:]))
    if answer.status == 0:
        said += _nonsense(arguments, answer)
    elif "error: " in answer.err:
        said += _incomplete(answer, named)
    elif not _may_be_silent(arguments, answer):
        said.append(("silent", f"status {answer.status}, {answer.err[:200]!r}"))
    if any(ord(c) < 32 and c not in "\n\t\r" for c in answer.err):
        said.append(("control", repr(answer.err[:200])))
    return said


def _may_be_silent(arguments: list[str], answer: Answer) -> bool:
    verb = arguments[0] if arguments else ""
    helped = answer.out.startswith("Usage") or answer.err.startswith("Usage")
    if verb == "net" and answer.status in SILENT_NET:
        return True
    return helped or answer.status in SILENT.get(verb, set())


def _incomplete(answer: Answer, named: tuple[str, ...]) -> list[tuple[str, str]]:
    """Errors without a place or a fix. Each is `error: PLACE: WHAT` and `  fix: FIX`."""
    missing: list[tuple[str, str]] = []
    for message in answer.err.split("error: ")[1:]:
        head, fix, rest = message.partition("\n  fix: ")
        if not fix or not rest.split("\n")[0].strip():
            missing.append(("no fix", message[:300]))
        place, colon, what = head.partition(": ")
        if not colon or not place.strip() or not what.strip():
            missing.append(("no place", message[:300]))
        elif named and not any(name in place or name in head for name in named):
            missing.append(("other place", message[:300]))
        if len(head) > 3000:
            missing.append(("long", f"{len(head)} characters"))
    return missing


def _nonsense(arguments: list[str], answer: Answer) -> list[tuple[str, str]]:
    """Figures of an accepted input that cannot be."""
    if "--json" not in arguments or not answer.out.strip().startswith(("{", "[")):
        return []
    try:
        body = json.loads(answer.out)
    except ValueError as error:
        return [("output", f"not JSON: {error}")]
    return [("figure", f"{key} = {value}") for key, value in _impossible(body)][:3]


def _impossible(body: Any, key: str = "") -> list[tuple[str, float]]:
    if isinstance(body, dict):
        return [row for name, item in body.items() for row in _impossible(item, str(name))]
    if isinstance(body, list):
        return [row for item in body for row in _impossible(item, key)]
    if isinstance(body, float) and not math.isfinite(body) and key not in ("loss", "first", "last"):
        return [(key, body)]
    sized = key.endswith(("_s", "_bytes", "devices", "tokens"))
    if sized and isinstance(body, (int, float)) and body < -1e-9:
        return [] if any(word in key for word in SIGNED) else [(key, body)]
    return []
