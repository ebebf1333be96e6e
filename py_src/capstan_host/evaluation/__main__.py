"""`lm_eval` with the model `capstan` and Capstan's tasks: the arguments are those of `lm_eval`.

Without arguments it prints the folder of the tasks, for `lm_eval --tasks FOLDER`.
"""

from __future__ import annotations

import sys

from lm_eval.__main__ import cli_evaluate

from . import TASKS


def main() -> None:
    """Run lm_eval's own command line, with Capstan's tasks unless --include_path names another folder."""
    given = sys.argv[1:]
    if not given:
        print(TASKS)
        return
    runs = given[0] == "run" or given[0].startswith("-")
    if runs and not any(each.split("=")[0] == "--include_path" for each in given):
        sys.argv += ["--include_path", str(TASKS)]
    cli_evaluate()


if __name__ == "__main__":
    main()
