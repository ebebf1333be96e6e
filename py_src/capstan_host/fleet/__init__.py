"""A fleet of headless browsers on Dask, each with a model: prompts in, results in order, as JSON lines.

pip install "capstan-webgpu[fleet]"; docs/fleet.md explains it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from capstan.signatures import check_arguments

from .items import FleetError, Item, ItemError, UnfitError
from .results import ResultFile, ResultFileError

if TYPE_CHECKING:
    from .fleet_client import Fleet as Fleet

__all__ = ["Fleet", "FleetError", "Item", "ItemError", "ResultFile", "ResultFileError", "UnfitError"]


def __getattr__(name: str) -> Any:
    if name == "Fleet":
        from .fleet_client import Fleet  # noqa: PLC0415  (in the extra `fleet`)

        return Fleet
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


check_arguments(sys.modules[__name__])
