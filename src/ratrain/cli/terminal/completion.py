"""What Tab offers for names: schedules, passes, presets, and the keys of `--set`.

What plugins bring is not offered: they are loaded when a verb runs, and Tab must not wait for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import get_args

import click

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _offering(names: Callable[[], Iterable[str]]) -> Complete:
    """What click asks for the words that begin like the one under the cursor."""

    def complete(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[str]:
        return [name for name in names() if name.startswith(typed)]

    return complete


def _schedules() -> Iterable[str]:
    from ratrain.program.strategies import STRATEGIES

    return STRATEGIES


def _passes() -> Iterable[str]:
    from ratrain.program.strategies import PASSES

    return PASSES


def _models() -> Iterable[str]:
    from ratrain.describe.presets import model_names

    return model_names()


def _clusters() -> Iterable[str]:
    from ratrain.describe.presets import cluster_names

    return cluster_names()


def _job_keys() -> Iterator[str]:
    """ "train.steps=" and all other values of a job."""
    from ratrain.describe.job_file import JobFile
    from ratrain.describe.strict import fields_of

    for table, field in fields_of(JobFile).items():
        for kind in (field.hint, *get_args(field.hint)):  # such as `LayoutSpec | None`
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                yield from (f"{table}.{key}=" for key in fields_of(kind))


schedules = _offering(_schedules)
passes = _offering(_passes)
models = _offering(_models)
clusters = _offering(_clusters)
job_keys = _offering(_job_keys)
