"""Writes the pages of the manual that follow from the source: every key of a file, and every verb.

    .venv/bin/python scripts/reference.py            # docs/reference/keys.md and verbs.md

A test holds the pages to what this writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_MADE = "*Written by `scripts/reference.py` from the source: change it there.*\n"
_KEYS = f"""# Every key

{_MADE}
What a job, a cluster, a plan and a graph file may hold, from the definitions that the loader checks
files against. [Describe](describe.md) says what the keys mean together. A quantity is a string with
its unit: `"20GB"`, `"1Gbit/s"`, `"40us"`. `ratrain schema job` prints the same for editors.
"""
_VERBS = f"""# Every verb

{_MADE}
What `ratrain VERB --help` prints. Every verb takes `--json` ([its keys](json.md)) and ends with one
of [these statuses](exit-codes.md).
"""

Schema = dict[str, Any]


def keys_page() -> str:
    """docs/reference/keys.md."""
    from ratrain.describe.job_file import JobFile
    from ratrain.describe.profiles import cluster_schema
    from ratrain.describe.schema import schema_of
    from ratrain.graph import GraphFile
    from ratrain.plan.file import PlanFile

    job, plan = schema_of(JobFile, ""), schema_of(PlanFile, "")
    for key, field in plan["properties"].items():  # what it repeats of the job
        for table in ("schedule", "train"):
            if key in job["properties"][table]["properties"]:
                field.setdefault("description", f"as in a job's `[{table}]`")
    files = {
        "A job file": (job, "[", "]"),
        "A cluster file": (cluster_schema(), "[", "]"),
        "A plan file": (plan, "", ""),
        "A graph file": (schema_of(GraphFile, ""), "[", "]"),
    }
    parts = [_KEYS]
    for title, (schema, before, after) in files.items():
        parts.append(f"## {title}\n")
        parts += _tables(schema, "", before, after)
    return "\n".join(parts)


def _tables(schema: Schema, path: str, before: str, after: str) -> Iterator[str]:
    """A heading and a table for a table of the file, then for those inside it."""
    inner: list[tuple[str, Schema, bool]] = []
    rows: list[str] = []
    for key, field in schema["properties"].items():
        shape, is_list = _shape(field)
        if "properties" in shape:
            inner.append((f"{path}.{key}".strip("."), shape, is_list))
        if path or "properties" not in shape:
            required = key in schema.get("required", ())
            rows.append(_row(key, field, required=required))
    if path:
        yield f"### `{before}{path}{after}`\n"
    if schema.get("description") and path:
        yield f"{_line(schema['description'])}\n"
    if rows:
        yield "\n".join(["| key | value | left out | |", "|---|---|---|---|", *rows]) + "\n"
    for name, shape, is_list in inner:
        brackets = ("[[", "]]") if is_list and before else (before, after)
        level = ".LEVEL" if shape.get("named") else ""
        yield from _tables(shape, name + level, *brackets)


def _shape(field: Schema) -> tuple[Schema, bool]:
    """The table that a field holds, and whether it holds several of them."""
    if field.get("type") == "array":
        return field["items"], True
    extra = field.get("additionalProperties")
    if isinstance(extra, dict) and "properties" in extra:
        return {**extra, "named": True}, False
    return field, False


def _row(key: str, field: Schema, *, required: bool) -> str:
    default = "required" if required else ""
    if "default" in field:
        default = f"`{json.dumps(field['default'])}`"
    shape, _ = _shape(field)
    words = "" if shape is field and "properties" in shape else field.get("description", "")
    return f"| `{key}` | {_value(field)} | {default} | {_line(words)} |"


def _value(field: Schema) -> str:
    """What may stand behind a key, in words."""
    if "anyOf" in field:
        return " or ".join(map(_value, field["anyOf"]))
    if "enum" in field:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in field["enum"])
    kind = str(field.get("type", "anything"))
    if kind == "array":
        return f"list: {_value(field['items'])}"
    if kind == "object":
        extra = field.get("additionalProperties")
        return f"table: {_value(extra)}" if isinstance(extra, dict) else "table"
    if "examples" in field:
        return f'as `"{field["examples"][0]}"`'
    least = field.get("minimum")
    most = field.get("maximum")
    bound = f" from {least:g}" if least is not None and least > -1000 else ""
    bound += f" to {most:g}" if bound and most is not None and most < 10 else ""
    names = {"string": "text", "boolean": "`true`, `false`", "integer": "whole number"}
    return names.get(kind, kind) + bound


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def verbs_page() -> str:
    """docs/reference/verbs.md."""
    from ratrain.cli.main import ratrain

    os.environ["COLUMNS"] = "80"
    parts = [_VERBS]
    for name, help_text in _helps(ratrain, "ratrain"):
        parts.append(f"## {name}\n\n```text\n{help_text}\n```\n")
    return "\n".join(parts)


def _helps(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Every verb that does something, by its whole name, and its help."""
    with click.Context(
        command, parent=parent, info_name=name, max_content_width=80, **command.context_settings
    ) as context:
        if not isinstance(command, click.Group):
            yield context.command_path, command.get_help(context)
            return
        for word in command.list_commands(context):
            verb = command.get_command(context, word)
            if verb is not None:
                yield from _helps(verb, word, context)


PAGES = {"keys.md": keys_page, "verbs.md": verbs_page}


def main() -> None:
    for name, written in PAGES.items():
        (FOLDER / name).write_text(written())


if __name__ == "__main__":
    main()
