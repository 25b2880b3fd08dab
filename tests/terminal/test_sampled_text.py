"""Text out of a model, in a terminal: it must not move it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from screens import Terminal, ratrain
from transformers import LlamaConfig, LlamaForCausalLM

from ratrain.controls import without_controls

PROMPT = "kept\x1b[2K\rtail\N{NO-BREAK SPACE}end\x07"
"""A sequence that erases a terminal's line, a return to its start, and a bell."""


def write_model(folder: Path) -> Path:
    """A Hugging Face folder whose tokens are bytes."""
    shape = LlamaConfig(
        vocab_size=257,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(shape).save_pretrained(folder / "model")
    return folder / "model"


@pytest.mark.slow
def test_a_terminal_shows_control_characters_and_a_file_gets_them(tmp_path: Path) -> None:
    model = str(write_model(tmp_path))
    line = ratrain("sample", model, "--prompt", PROMPT, "--tokens", "1")
    saved = tmp_path / "text"
    shown, written = (Terminal(line, columns=80, folder=tmp_path, stdout=f) for f in (None, saved))
    for terminal in (shown, written):
        terminal.end()
        assert terminal.status == 0, terminal.lines
    assert shown.lines[0].startswith("kept\\x1b[2K\\rtail\N{NO-BREAK SPACE}end\\x07")
    assert saved.read_bytes().startswith(PROMPT.encode())


@given(st.text())
def test_only_control_characters_are_written_as_escapes(text: str) -> None:
    shown = without_controls(text)
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in shown)
    assert without_controls(shown) == shown
    if not any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in text):
        assert shown == text
