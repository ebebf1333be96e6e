"""An extension of griffe: signatures show the type of a model's option, without its row."""

from __future__ import annotations

from typing import Any

from griffe import Attribute, ExprName, ExprSubscript, ExprTuple, Extension

__all__ = ["PlainOptions"]


class PlainOptions(Extension):  # type: ignore[misc, unused-ignore]  # griffe is not there while types are checked
    """`Annotated[TYPE, ...]` is TYPE."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """An attribute was read from the source."""
        kind = attr.annotation
        if isinstance(kind, ExprSubscript) and isinstance(kind.left, ExprName) and kind.left.name == "Annotated":
            assert isinstance(kind.slice, ExprTuple)
            attr.annotation = kind.slice.elements[0]
