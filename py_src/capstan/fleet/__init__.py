"""A fleet of headless browsers on Dask, each with a model: prompts in, results in order, as JSON lines.

pip install "capstan-webgpu[fleet]"; docs/fleet.md tells how.
"""

from .fleet import Fleet
from .items import FleetError, Item, ItemError, UnfitError
from .results import ResultFile, ResultFileError

__all__ = ["Fleet", "FleetError", "Item", "ItemError", "ResultFile", "ResultFileError", "UnfitError"]
