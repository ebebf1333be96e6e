"""Evaluates models in Capstan's page with lm-evaluation-harness (`lm_eval`). Importing this package registers the model
`capstan`.

`python -m capstan_host.evaluation ARGUMENTS` runs `lm_eval ARGUMENTS` with that model and with the tasks in TASKS.
"""

import sys
from pathlib import Path

from capstan.signatures import check_arguments

from .lm_eval_model import CapstanLM
from .runners import RequestError

__all__ = ["TASKS", "CapstanLM", "RequestError"]

TASKS = Path(__file__).parent / "tasks"
"""The folder of tasks that need no download."""

check_arguments(sys.modules[__name__])
