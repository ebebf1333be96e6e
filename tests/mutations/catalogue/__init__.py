"""The seeded faults, by room of the product."""

from __future__ import annotations

from ..mutation import Mutation
from .generation import GENERATION
from .sampling import SAMPLING
from .tape import TAPE
from .weights import WEIGHTS

__all__ = ["MUTATIONS"]

MUTATIONS: tuple[Mutation, ...] = (*SAMPLING, *GENERATION, *TAPE, *WEIGHTS)
"""Python's first, then the page's: a fault in Python makes the site's wheel anew, which tests in the page wait for."""
