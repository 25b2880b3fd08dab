"""How a run and those who follow its weights find each other: files in the run's folder.

    weights/layout.json          what the run publishes: elements of each unit, by stored name
    weights/offer-ID-N.json      a follower's: where the N-th version that it takes may be written
    weights/sources-ID-N.json    rank 0's answer: of which step that version is, and who writes what

Files say no secret: who writes into a follower's memory proves the run's, as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ratrain.describe.amounts import Name
from ratrain.describe.strict import Rule, load
from ratrain.errors import SpecError
from ratrain.ranges import Block, line
from ratrain.readers.files import read_text
from ratrain.readers.json import parse_json, read_json_table
from ratrain.readers.writing import write_whole
from ratrain.transport.uses.weights import Offer
from ratrain.transport.wire.address import Address, Descriptor

ELEMENT_BYTES = 4
PURPOSE = b"ratrain weights"
"""What the secret of engines is derived from the run's for."""
_Number = Annotated[int, Rule(low=0, high=(1 << 63) - 1)]
_Words = Annotated[str, Rule(high=1 << 16)]
"""An address or a descriptor of the transport, as JSON."""


@dataclass(frozen=True)
class Piece:
    """Elements of a unit, by its stored name: what one write brings, or more."""

    name: Name
    begin: _Number
    count: _Number


@dataclass(frozen=True)
class _Held:
    name: Name
    count: _Number


@dataclass(frozen=True)
class _OfferFile:
    version: _Number
    place: _Words
    imm: _Number
    elements: tuple[_Held, ...]


@dataclass(frozen=True)
class Source:
    """A rank that writes, and its pieces of everything."""

    address: _Words
    pieces: tuple[Piece, ...]

    def blocks(self) -> list[Block]:
        """Its pieces as ranges of bytes. A gap between any two keeps them apart: each is a write
        of its own."""
        blocks: list[Block] = []
        offset = 0
        for piece in self.pieces:
            blocks.append(block_of(piece, offset))
            offset = blocks[-1].end + ELEMENT_BYTES
        return blocks


@dataclass(frozen=True)
class Sources:
    """Of one version: how many steps' updates are in it, and who writes it."""

    step: _Number
    sources: tuple[Source, ...]

    def by_address(self) -> dict[Address, list[Block]]:
        """What a subscriber waits for."""
        return {Address.from_bytes(each.address.encode()): each.blocks() for each in self.sources}


@dataclass(frozen=True)
class _Layout:
    units: tuple[_Held, ...]


def block_of(piece: Piece, offset: int) -> Block:
    """A piece as bytes of its unit, of which the first is at an offset of somebody's memory."""
    begin = piece.begin * ELEMENT_BYTES
    return line(piece.name, begin, begin + piece.count * ELEMENT_BYTES, offset)


def _rows(elements: Mapping[str, int]) -> list[dict[str, object]]:
    return [{"name": name, "count": count} for name, count in elements.items()]


def nics_of(said: str) -> str | tuple[str, ...]:
    """What the transport's `Config` calls them: "loopback", "all", or each by itself."""
    return said if said in ("loopback", "all") else tuple(map(str.strip, said.split(",")))


def weights_folder(run: Path) -> Path:
    """Where the files are."""
    return run / "weights"


def packed(elements: Mapping[str, int]) -> tuple[Block, ...]:
    """Units behind each other, as a follower holds them."""
    blocks: list[Block] = []
    offset = 0
    for name, count in elements.items():
        blocks.append(line(name, 0, count * ELEMENT_BYTES, offset))
        offset += count * ELEMENT_BYTES
    return tuple(blocks)


def write_layout(run: Path, units: Mapping[str, int]) -> None:
    """Begins publishing: what earlier ranks and their followers have left is gone."""
    folder = weights_folder(run)
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.json"):
        path.unlink(missing_ok=True)
    write_whole(folder / "layout.json", json.dumps({"units": _rows(units)}))


def read_layout(run: Path) -> dict[str, int] | None:
    """Elements of each unit; None where the run does not publish, or not yet."""
    path = weights_folder(run) / "layout.json"
    if not path.exists():
        return None
    return {each.name: each.count for each in load(_Layout, *read_json_table(path)).units}


def write_offer(run: Path, follower: str, offer: Offer, elements: Mapping[str, int]) -> None:
    """A follower's next version may come."""
    body = {
        "version": offer.version,
        "place": offer.place.to_bytes().decode(),
        "imm": offer.imm,
        "elements": _rows(elements),
    }
    name = f"offer-{follower}-{offer.version}.json"
    write_whole(weights_folder(run) / name, json.dumps(body))


def offers_of(run: Path, say: Callable[[str], None]) -> dict[str, str]:
    """The words of all offers, by `ID-N`. One that cannot be read is removed, and said."""
    found: dict[str, str] = {}
    for path in sorted(weights_folder(run).glob("offer-*.json")):
        try:
            words = read_text(path)
            parse_offer(words)
            found[path.stem.removeprefix("offer-")] = words
        except (ValueError, SpecError) as error:
            if path.exists():  # else its follower has given it up
                say(f"{path}: not an offer: {error}")
                path.unlink(missing_ok=True)
    return found


def parse_offer(words: str) -> Offer:
    """An offer from its words."""
    said = load(_OfferFile, *parse_json(words, "a follower's offer"))
    place = Descriptor.from_bytes(said.place.encode())
    return Offer(
        said.version, place, said.imm, packed({each.name: each.count for each in said.elements})
    )


def write_sources(run: Path, offer: str, step: int, sources: Sequence[Mapping[str, Any]]) -> None:
    """Rank 0's answer to an offer, which is taken by then."""
    body = {"step": step, "sources": list(sources)}
    write_whole(weights_folder(run) / f"sources-{offer}.json", json.dumps(body))
    (weights_folder(run) / f"offer-{offer}.json").unlink(missing_ok=True)


def take_sources(run: Path, follower: str, version: int) -> Sources | None:
    """The answer to an offer; None where there is none yet."""
    path = weights_folder(run) / f"sources-{follower}-{version}.json"
    if not path.exists():
        return None
    said = load(Sources, *read_json_table(path))
    path.unlink(missing_ok=True)
    return said


def withdraw_offer(run: Path, follower: str, version: int) -> None:
    """It is not to be taken any more."""
    (weights_folder(run) / f"offer-{follower}-{version}.json").unlink(missing_ok=True)
