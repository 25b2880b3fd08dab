"""Changes to one value of a table: what it becomes, and what an honest reader must do about it.

`REJECT`: the input is nonsense and must be refused. `CHANGE`: it means something else, so it must
be refused or show in the output. `ANY`: nothing can be said but that it is answered.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

REJECT, CHANGE, SAME, ANY = "reject", "change", "same", "any"
Keys = tuple[str | int, ...]


@dataclass(frozen=True)
class Raw:
    """Text that stands in a file as it is: numbers and names that no value of Python prints as."""

    text: str


@dataclass(frozen=True)
class Changed:
    """A tree after one change: what was done, where, and what is expected of a reader."""

    tree: Any
    what: str
    keys: Keys
    expect: str


LONG = "x" * 5000
WORDS = (
    *("", " ", "\n", "\x1b[31mred", "a\u202eb", "é" * 300, LONG, "../x", "/", "/dev/zero"),
    *("..", ".", "NaN", "null", "0", "-1", "1e999", "%s%n", "${HOME}", "a,b", 'a"b', "\t", "🦀"),
)
QUANTITIES = (
    *("20", "GB", "-1GB", "0GB", "1e400GB", "nanGB", "infGB", "1e30GB", "20XB", "20 G B"),
    *("２０GB", "1" * 5000 + "GB", "20GB ", "1_GB", "0x20GB", "-40us", "1e30s", "1e40FLOP/s"),
)
NUMBERS: tuple[tuple[Any, str], ...] = (
    (0, ANY),
    (-1, ANY),
    (10**24, REJECT),
    (2**53, ANY),
    *((number, ANY) for number in (10, 1000, 10_000, 65_536, 10**5, 10**6, 10**7, 10**9, 10**12)),
    (2**63, REJECT),
    (2**64 + 1, REJECT),
    (Raw("9" * 5000), REJECT),
    (1.5, ANY),
    (-0.0, ANY),
    (1e308, REJECT),
    (Raw("1e999"), REJECT),
    (Raw("nan"), REJECT),
    (Raw("NaN"), REJECT),
    (Raw("inf"), REJECT),
    (Raw("-Infinity"), REJECT),
)
KINDS: tuple[Any, ...] = ("text", True, None, [], {}, [[]], {"a": 1}, [1, "a"])


def walk(tree: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Every value with the keys down to it, outermost first."""
    yield keys, tree
    if isinstance(tree, dict):
        for key, item in tree.items():
            yield from walk(item, (*keys, key))
    elif isinstance(tree, list):
        for number, item in enumerate(tree):
            yield from walk(item, (*keys, number))


def replaced(tree: Any, keys: Keys, value: Any) -> Any:
    """The tree with another value at some keys."""
    if not keys:
        return value
    first, *rest = keys
    copy: Any = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[first] = replaced(tree[first], tuple(rest), value)
    return copy


def changed_value(tree: Any, rng: random.Random) -> Changed | None:
    """One leaf of the tree with another value."""
    leaves = [(keys, value) for keys, value in walk(tree) if not isinstance(value, (dict, list))]
    if not leaves:
        return None
    keys, value = rng.choice(leaves)
    if isinstance(value, bool):
        other, expect = rng.choice([(not value, CHANGE), (1, REJECT), ("true", REJECT)])
    elif isinstance(value, (int, float)):
        other, expect = _another_number(value, rng)
    elif isinstance(value, str):
        other, expect = _another_text(value, rng)
    else:
        other, expect = rng.choice([(1, ANY), ("x", ANY), ([], ANY)])
    return Changed(replaced(tree, keys, other), f"{value!r} -> {other!r}"[:120], keys, expect)


def _another_number(value: float, rng: random.Random) -> tuple[Any, str]:
    if rng.random() < 0.35:
        near = (value + 1, value - 1, value * 2, value * 3 + 1, value + 0.25, -value)
        return rng.choice(near), CHANGE
    if rng.random() < 0.25:
        return rng.choice(KINDS), REJECT
    return rng.choice(NUMBERS)


def _another_text(value: str, rng: random.Random) -> tuple[Any, str]:
    choice = rng.random()
    if choice < 0.2:
        other = rng.choice([1, 1.5, True, [], {}, ["a"], {"a": 1}])
        return other, CHANGE if (value, other) == ("any", 1) else REJECT  # a host's count
    if choice < 0.45 and value[:1].isdigit():
        return rng.choice(QUANTITIES), ANY
    if choice < 0.6 and len(value) > 1:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice("abz09 _") + value[at + 1 :], ANY
    if choice < 0.7 and value:
        return value * rng.choice([2, 300]), ANY
    return rng.choice(WORDS), ANY


def renamed(tree: Any, rng: random.Random) -> Changed | None:
    """One key of a table misspelt."""
    keyed = [keys for keys, _ in walk(tree) if keys and isinstance(keys[-1], str)]
    if not keyed:
        return None
    keys = rng.choice(keyed)
    key = str(keys[-1])
    other = rng.choice([key[:-1], key + "s", key.upper(), key[::-1], "", key + ".x", LONG[:300]])
    table = _at(tree, keys[:-1])
    if other == key or other in table:
        return None
    copy = {(other if name == key else name): item for name, item in table.items()}
    return Changed(replaced(tree, keys[:-1], copy), f"{key} renamed {other[:40]!r}", keys, REJECT)


def dropped(tree: Any, rng: random.Random) -> Changed | None:
    """One key or item left out."""
    inner = [keys for keys, _ in walk(tree) if keys]
    if not inner:
        return None
    keys = rng.choice(inner)
    parent = _at(tree, keys[:-1])
    if isinstance(parent, dict):
        copy: Any = {name: item for name, item in parent.items() if name != keys[-1]}
    else:
        copy = [item for number, item in enumerate(parent) if number != keys[-1]]
    return Changed(replaced(tree, keys[:-1], copy), f"without {keys[-1]}", keys, ANY)


def added(tree: Any, rng: random.Random) -> Changed | None:
    """A key that no table has."""
    tables = [keys for keys, value in walk(tree) if isinstance(value, dict)]
    keys = rng.choice(tables)
    key = rng.choice(["surprise", "Name", "devcies", "__class__", "x" * 300, "ключ"])
    value = rng.choice([1, "a", [1], {"b": 2}, True, 0.5])
    table = _at(tree, keys)
    if key in table:
        return None
    copy = {**table, key: value}
    return Changed(replaced(tree, keys, copy), f"{key[:20]} added", (*keys, key), REJECT)


def moved(tree: Any, rng: random.Random) -> Changed | None:
    """A list with an item doubled, turned round, or another value in place of a table."""
    lists = [(keys, v) for keys, v in walk(tree) if keys and isinstance(v, (list, dict))]
    if not lists:
        return None
    keys, value = rng.choice(lists)
    if isinstance(value, list):
        other = rng.choice([value * 2, value[::-1], [value], [], value[:1] * 1000])
        return Changed(replaced(tree, keys, other), "list changed", keys, ANY)
    other = rng.choice([[value], 1, "x", True, []])
    return Changed(replaced(tree, keys, other), "table replaced", keys, REJECT)


def deepened(tree: Any, rng: random.Random) -> Changed | None:
    """A value under very many brackets."""
    inner = [keys for keys, _ in walk(tree) if keys]
    if not inner:
        return None
    keys = rng.choice(inner)
    depth = rng.choice([70, 500, 3000, 100_000])
    return Changed(
        replaced(tree, keys, Raw("[" * depth + "]" * depth)), f"{depth} deep", keys, REJECT
    )


CHANGES: tuple[tuple[Callable[[Any, random.Random], Changed | None], int], ...] = (
    (changed_value, 12),
    (renamed, 2),
    (dropped, 3),
    (added, 2),
    (moved, 2),
    (deepened, 1),
)


def change(tree: Any, rng: random.Random) -> Changed:
    """One change of a tree, or several at once, of which nothing can then be said."""
    makers, weights = zip(*CHANGES, strict=True)
    made: Changed | None = None
    for _ in range(rng.choice([1, 1, 1, 1, 2, 4])):
        source = tree if made is None else made.tree
        changed: Changed | None = None
        while changed is None:
            changed = rng.choices(makers, weights)[0](source, rng)
        made = (
            changed
            if made is None
            else Changed(changed.tree, f"{made.what}; {changed.what}", changed.keys, ANY)
        )
    assert made is not None
    return made


def _at(tree: Any, keys: Keys) -> Any:
    for key in keys:
        tree = tree[key]
    return tree
