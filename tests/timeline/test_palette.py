"""The project's colours: seen on both backgrounds, told apart, labels on them readable."""

from __future__ import annotations

from itertools import combinations

import pytest

from ratrain.program.kind import Kind
from ratrain.timeline import palette
from ratrain.timeline.palette import (
    OP_CLASSES,
    Colour,
    OpClass,
    class_of,
    colour_of,
    contrast,
    ink_on,
)

THEMES = ("light", "dark")
TEXT, SHAPE = 4.5, 3.0
"""What WCAG 2.2 asks of text and of shapes."""


def shade(colour: Colour, theme: str) -> str:
    return getattr(colour, theme)


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("entry", OP_CLASSES, ids=lambda entry: entry.key)
def test_an_op_is_seen_on_the_background_and_its_label_on_it(entry: OpClass, theme: str) -> None:
    fill = shade(entry.colour, theme)
    assert contrast(fill, shade(palette.BACKGROUND, theme)) >= SHAPE
    assert contrast(fill, shade(palette.IDLE, theme)) >= SHAPE * 0.95
    assert contrast(fill, ink_on(fill)) >= TEXT


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["INK", "MUTED", "CRITICAL", "GOOD", "BAD"])
def test_text_is_read_on_the_background(name: str, theme: str) -> None:
    colour: Colour = getattr(palette, name)
    assert contrast(shade(colour, theme), shade(palette.BACKGROUND, theme)) >= TEXT


@pytest.mark.parametrize("theme", THEMES)
def test_no_two_colours_are_the_same(theme: str) -> None:
    shades = [shade(entry.colour, theme) for entry in OP_CLASSES]
    assert all(colour != other for colour, other in combinations(shades, 2))
    waits = [shade(colour_of(entry), theme) for entry in palette.WAITS.values()]
    assert len(set(waits)) == len(waits)


@pytest.mark.parametrize("kind", tuple(Kind))
def test_every_kind_of_op_has_a_class(kind: Kind) -> None:
    assert class_of(kind.lane.word, kind.name) in OP_CLASSES
