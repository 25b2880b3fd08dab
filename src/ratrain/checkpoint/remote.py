"""Checkpoints in an object store, below the URL of their run.

    URL/checkpoints/step-00000100/rank-00000.5f0c2a91.safetensors    whoever saves it adds a name
    URL/checkpoints/step-00000100/manifest.json                      written last

A step without a manifest is none. Names of rank files never repeat, so a step that is saved again
is the old one until its manifest is replaced, by one request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from ratrain.checkpoint.folder import step_of
from ratrain.checkpoint.manifest import NAME, Damage, Manifest, parse
from ratrain.errors import StoreError
from ratrain.objects.client import Stores, stores
from ratrain.objects.remote import Remote
from ratrain.readers.limits import TIMELINE_BYTES


def steps_in(remote: Remote) -> dict[Remote, dict[str, int]]:
    """The objects of each step with their bytes, and of what is unfinished, oldest first."""
    steps: dict[Remote, dict[str, int]] = defaultdict(dict)
    for name, size_bytes in stores().sizes(remote).items():
        folder, _, file = name.partition("/")
        if step_of(remote / folder) is not None:
            steps[remote / folder][file] = size_bytes
    return dict(sorted(steps.items(), key=lambda item: step_of(item[0]) or 0))


def read_remote(step: Remote, sizes: Mapping[str, int] | None = None) -> Manifest:
    """A step's manifest, where every file has its size; `Damage` says what is wrong else."""
    if sizes is None:
        sizes = stores().sizes(step)
    if NAME not in sizes:
        raise Damage(f"{NAME} is missing: {step.name} is not a checkpoint")
    if sizes[NAME] > TIMELINE_BYTES:
        raise Damage(f"{NAME} has {sizes[NAME]:,} bytes; at most {TIMELINE_BYTES:,} are read")
    try:
        manifest = parse(stores().read(step / NAME, 0, sizes[NAME]))
    except Damage as damage:
        raise Damage(f"{NAME} {damage}") from damage
    if step_of(step) != manifest.meta.step:
        raise Damage(f"{NAME} is of step {manifest.meta.step}")
    for record in manifest.files:
        size_bytes = sizes.get(record.file)
        if size_bytes is None:
            raise Damage(f"{record.file} is missing")
        if size_bytes != record.size_bytes:
            raise Damage(f"{record.file} has {size_bytes} bytes instead of {record.size_bytes}")
    return manifest


def discard_remote(store: Stores, step: Remote, kept: Iterable[str] = ()) -> None:
    """Removes a step, its manifest first, so that it is never half there; or all of its objects
    that are not `kept`."""
    names = set(store.sizes(step)) - set(kept)
    for name in sorted(names, key=lambda name: name != NAME):
        store.delete([step / name])


def fetched(remote: Remote, path: Path) -> None:
    """Copies a checkpoint to a folder that is made."""
    path.mkdir()
    for name in stores().sizes(remote):
        if "/" in name:
            raise StoreError("holds folders", place=str(remote), fix="give a checkpoint")
        stores().get_file(remote / name, path / name)
