"""Cases of microseconds: a test each would cost more than what they compute."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

__all__ = ["looped"]

Test = Callable[..., None]


def looped(name: str, values: Iterable[Any]) -> Callable[[Test], Test]:
    """Runs a test with each value of the parameter `name`, one after another; a failure names the value."""
    cases = list(values)

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run(**given: Any) -> None:
            for case in cases:
                try:
                    test(**given, **{name: case})
                except AssertionError as error:
                    error.add_note(f"{name} is {case}")
                    raise

        signature = inspect.signature(test)
        others = [parameter for parameter in signature.parameters.values() if parameter.name != name]
        vars(run)["__signature__"] = signature.replace(parameters=others)
        return run

    return decorate
