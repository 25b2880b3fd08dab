"""How a result shows itself: as text in a terminal, as HTML in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratrain.report.html import Markup


class Shown(ABC):
    """A result that prints as the command line prints it, also where a notebook or a prompt shows
    its `repr`."""

    @abstractmethod
    def _lines(self) -> list[str]:
        """The result in lines of at most 80 columns."""

    def _markup(self) -> Markup:
        """The result in HTML; its lines, where there is nothing better."""
        from ratrain.report.html import tag

        return tag("pre", "\n".join(self._lines()))

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return self._markup()
