"""Trees written as TOML and JSON with whatever a change put in, and changes of bytes and lines."""

from __future__ import annotations

import json
import random
from typing import Any

from fuzz_values import ANY, REJECT, SAME, Raw


def as_json(value: Any, indent: int = 0) -> str:
    """JSON, raw texts as they stand."""
    pad, inner = " " * indent, " " * (indent + 1)
    if isinstance(value, Raw):
        return {"nan": "NaN", "inf": "Infinity"}.get(value.text, value.text)
    if isinstance(value, dict):
        rows = [f"{inner}{json.dumps(k)}: {as_json(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{pad}}}" if rows else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(as_json(item, indent + 1) for item in value) + "]"
    return json.dumps(value)


def as_toml(table: Any) -> str:
    """TOML: plain keys of a table first, then its tables; a root that is no table as JSON."""
    if not isinstance(table, dict):
        return as_json(table)
    lines: list[str] = []
    _toml_table(table, (), lines)
    return "\n".join(lines) + "\n"


def _toml_table(table: dict[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    later: list[tuple[str, Any]] = []
    for key, value in table.items():
        listed = isinstance(value, list) and value and all(isinstance(v, dict) for v in value)
        if isinstance(value, dict) or listed:
            later.append((key, value))
        else:
            lines.append(f"{_key(key)} = {_inline(value)}")
    for key, value in later:
        name = ".".join(_key(part) for part in (*path, key))
        for item in value if isinstance(value, list) else [value]:
            lines += ["", f"[[{name}]]" if isinstance(value, list) else f"[{name}]"]
            _toml_table(item, (*path, key), lines)


def _key(key: str) -> str:
    bare = key and key.isascii() and all(c.isalnum() or c in "_-" for c in key)
    return key if bare else json.dumps(key)


def _inline(value: Any) -> str:
    if isinstance(value, Raw):
        words = {"NaN": "nan", "-Infinity": "-inf"}
        return words.get(value.text, value.text)
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return json.dumps(value)


def doubled_key(text: str, rng: random.Random) -> str | None:
    """A line `"key": value,` or `key = value` written twice."""
    lines = text.split("\n")
    keyed = [
        n
        for n, line in enumerate(lines)
        if (line.strip().startswith('"') and line.endswith(","))
        or (" = " in line and not line.startswith("#") and not line.endswith("["))
    ]
    if not keyed:
        return None
    number = rng.choice(keyed)
    return "\n".join([*lines[: number + 1], lines[number], *lines[number + 1 :]])


def changed_bytes(content: bytes, rng: random.Random) -> tuple[bytes, str, str]:
    """Bytes with something done to them: (bytes, what, what is expected)."""
    size = len(content)
    at = rng.randrange(size + 1)
    kind = rng.randrange(13)
    if kind == 0:
        return content[:at], f"cut at {at}", ANY
    if kind == 1 and size:
        at = rng.randrange(size)
        flipped = content[at] ^ (1 << rng.randrange(8))
        return content[:at] + bytes([flipped]) + content[at + 1 :], f"bit flip at {at}", ANY
    if kind == 2:
        return content[:at] + b"\0" + content[at:], f"NUL at {at}", ANY
    if kind == 3:
        bad = rng.choice([b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xf5\x80\x80\x80"])
        return content[:at] + bad + content[at:], f"no UTF-8 at {at}", ANY
    if kind == 4:
        return b"", "empty", ANY
    if kind == 5:
        junk = bytes(rng.randrange(256) for _ in range(rng.choice([1, 20, 3000])))
        return content[:at] + junk + content[at:], f"junk at {at}", ANY
    if kind == 6:
        end = min(size, at + rng.choice([1, 10, 100, 1000]))
        return content[:at] + content[end:], f"{at} to {end} removed", ANY
    if kind == 7:
        end = min(size, at + rng.choice([1, 10, 100]))
        times = rng.choice([2, 50])
        return content[:at] + content[at:end] * times + content[end:], "repeated", ANY
    if kind == 8:
        lines = content.split(b"\n")
        number = rng.randrange(len(lines))
        other = rng.choice([lines[:number] + lines[number + 1 :], [*lines, lines[number]]])
        return b"\n".join(other), "line moved", ANY
    if kind == 9:
        lines = content.split(b"\n")
        rng.shuffle(lines)
        return b"\n".join(lines), "lines shuffled", ANY
    if kind == 10:
        word = rng.choice([b"[" * 3000, b"{" * 3000, b'"' * 3000, b"9" * 5000, b"(" * 100])
        return content[:at] + word + content[at:], f"{word[:1]!r} many times at {at}", ANY
    if kind == 11:
        return content * rng.choice([2, 3]), "doubled", ANY
    return content[:at] + b" " * 100_000 + content[at:], "blanks", ANY


def reencoded(content: bytes, rng: random.Random) -> tuple[bytes, str, str]:
    """The same text as other editors and systems write it."""
    text = content.decode("utf-8")
    kind = rng.randrange(4)
    if kind == 0:
        return b"\xef\xbb\xbf" + content, "byte-order mark", SAME
    if kind == 1:
        return text.encode("utf-16"), "UTF-16", REJECT
    if kind == 2:
        return content.replace(b"\n", b"\r\n"), "CRLF", ANY
    return text.encode("utf-32"), "UTF-32", REJECT
