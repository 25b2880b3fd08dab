"""Which tokens a run was trained on: what a checkpoint remembers of them, and holds a run to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ratrain.corpus.prepare import Prepared
from ratrain.describe.amounts import FileName, Name
from ratrain.describe.strict import Rule, load
from ratrain.errors import SpecError
from ratrain.objects.remote import Location
from ratrain.readers.json import as_table
from ratrain.readers.place import Place

KEY = "data"
"""Of a checkpoint's state."""


@dataclass(frozen=True)
class _Identity:
    """What a checkpoint keeps of its data."""

    text: FileName
    tokens: Annotated[int, Rule(low=0)]
    sha256: Name
    tokenizer: Name


def identity_of(prepared: Prepared) -> dict[str, Any]:
    """What a checkpoint keeps: a name for people, the tokens' number and SHA-256, the tokenizer's
    fingerprint."""
    index, names = prepared.store.index, [source.path.name for source in prepared.sources]
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return {
        "text": names[0] + others,
        "tokens": index.tokens,
        "sha256": index.sha256,
        "tokenizer": index.tokenizer,
    }


def data_of_state(state: Mapping[str, Any], checkpoint: Location) -> Mapping[str, Any] | None:
    """The identity that a checkpoint's state holds; None in one of an older version."""
    data: Any = state.get(KEY)
    if data is None:
        return None
    place = Place(str(checkpoint), keys=("state", KEY), form="json")
    load(_Identity, *as_table(data, place))
    return data


def require_same(
    state: Mapping[str, Any], current: Mapping[str, Any], job: Path | None, checkpoint: Location
) -> None:
    """Refuses to continue with tokens other than those of a checkpoint's `state`. A state of an
    older version, which does not name its tokens, continues with any."""
    saved = data_of_state(state, checkpoint)
    if saved is None or all(saved.get(key) == current[key] for key in ("sha256", "tokenizer")):
        return
    if saved.get("tokenizer") != current["tokenizer"]:
        problem = f"{checkpoint.name} was trained with another tokenizer"
    else:
        problem = (
            f"{checkpoint.name} was trained on different text: {_told(saved)}, not {_told(current)}"
        )
    raise SpecError(
        problem,
        place=f"{job or 'job'} [data]",
        fix="restore the run's data; to train its weights on other data, "
        f"`ratrain export {checkpoint.parent.parent} OUT` and start a new run with "
        'weights = "OUT" in [train]',
    )


def _told(data: Mapping[str, Any]) -> str:
    """An identity in words: "text.txt (40,001 tokens, sha256 3f2a1c9e0b12)"."""
    return f"{data['text']} ({data['tokens']:,} tokens, sha256 {data['sha256'][:12]})"
