"""Checks for apps that embed Capstan: ids against an oracle, speed against a baseline, counters; a pytest plugin.

    def test_ids(capstan_model):
        llm = capstan_model("models/bundled")
        llm.assert_ids("def fibonacci(n):", oracle="genai", tokens=32)

docs/testing.md is the guide; `capstan_host.testing.plugin` has the fixtures.
"""

import sys

from capstan.signatures import check_arguments

from .answers import TIE, Agreement, Answer, Counters, MismatchError, NearTie, NearTieWarning
from .oracles import Golden, LlamaCpp, NativeGenai, OracleError
from .tested_model import TestedModel
from .timing import Ratio, compare

__all__ = [
    "TIE",
    "Agreement",
    "Answer",
    "MismatchError",
    "Counters",
    "Golden",
    "LlamaCpp",
    "NativeGenai",
    "NearTie",
    "NearTieWarning",
    "OracleError",
    "Ratio",
    "TestedModel",
    "compare",
]

check_arguments(sys.modules[__name__])
