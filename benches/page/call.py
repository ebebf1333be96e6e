"""The script of every request to Capstan's worker: call a function of in_page.py; prints its result as JSON.

argv: SOURCE (of in_page.py) CALL (JSON: name and arguments)
"""

import json
import sys
import types

if "bench_in_page" not in sys.modules:
    made = types.ModuleType("bench_in_page")
    exec(compile(sys.argv[1], "in_page.py", "exec"), vars(made))
    sys.modules["bench_in_page"] = made
name, arguments = json.loads(sys.argv[2])
print(json.dumps(await getattr(sys.modules["bench_in_page"], name)(**arguments)))
