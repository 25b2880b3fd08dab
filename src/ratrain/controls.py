"""Text that others wrote, for a terminal: without characters that move it."""

from __future__ import annotations

from unicodedata import category

from ratrain.errors import escaped

_CONTROLS = {"Cc", "Cs"}
"""Unicode's categories of control characters, and of halves of pairs that no encoding prints."""


def without_controls(text: str) -> str:
    """The text with control characters but line ends and tabs written as escapes, so that no
    terminal erases, overwrites or obeys anything."""
    return "".join(c if c in "\n\t" or category(c) not in _CONTROLS else escaped(c) for c in text)
