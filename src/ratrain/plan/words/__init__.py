"""Public names of this floor: all that is printed, in lines and as JSON."""

# pyright: reportUnusedImport=false

from __future__ import annotations

from typing import TYPE_CHECKING

from ratrain.faces import face

if TYPE_CHECKING:
    from ratrain.plan.words.explain import (
        NEAR,
        binding,
        explanation_json,
        explanation_of,
        explanation_text,
    )
    from ratrain.plan.words.explain_kinds import binding_words, busy_words
    from ratrain.plan.words.orders import (
        compared_json,
        compared_text,
        order_found_json,
        order_found_text,
        settings,
    )
    from ratrain.plan.words.planned import every_json, every_text, peaks_in_words, simulated_json

PUBLIC, __getattr__ = face(__name__)
