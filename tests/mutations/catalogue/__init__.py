"""The seeded faults, by room of the product."""

from __future__ import annotations

from ..mutation import Mutation
from .agents import AGENTS
from .apis import APIS
from .drivers import DRIVERS
from .evaluation import EVALUATION
from .generation import GENERATION
from .graphs import GRAPHS
from .inputs import INPUTS
from .kernels import KERNELS
from .memory import MEMORY
from .page import PAGE
from .places import PLACES
from .sampling import SAMPLING
from .states import STATES
from .tape import TAPE
from .tools import TOOLS
from .webgpu import WEBGPU
from .weights import WEIGHTS

__all__ = ["MUTATIONS"]

MUTATIONS: tuple[Mutation, ...] = (
    *(
        *TOOLS,
        *SAMPLING,
        *GENERATION,
        *INPUTS,
        *GRAPHS,
        *MEMORY,
        *WEIGHTS,
        *PLACES,
        *APIS,
        *DRIVERS,
        *EVALUATION,
        *TAPE,
        *WEBGPU,
        *AGENTS,
        *STATES,
        *PAGE,
        *KERNELS,
    ),
)
"""Python's first, then the page's: after a fault in Python tests in the page wait for a new wheel."""
