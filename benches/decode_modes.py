"""Times decode steps of one model in every mode, interleaved.

usage: python3 build.py exec benches/decode_modes.py --model DIR

Prints one JSON object: for each mode the median milliseconds a token over the rounds (wall, from the first token read
to the last), the host's milliseconds a burst, and the counters of one round. Greedy ids must be equal in all modes.
Wall times mean something on a GPU only, and there as ratios within one run.
"""

import json
import statistics
import sys

import capstan

TOKENS = 128
ROUNDS = 5
PROMPT = [1, 2, 3, 4, 5]
MODES = {
    "eager (off)": {"capture": "off"},
    "ort capture": {"capture": "ort"},
    "tape, indirect": {"capture": "tape", "direct": False},
    "tape, K=1": {"capture": "tape", "run_ahead": 1},
    "tape, adaptive": {"capture": "tape"},
}

(folder,) = models.values()  # noqa: F821  # `models` is given by build.py exec
runs: dict[str, list[float]] = {name: [] for name in MODES}
report: dict[str, object] = {}
ids: dict[str, list[int]] = {}
opened = {}
for name, options in MODES.items():
    how = {"run_ahead": None, "direct": None, **options}
    model = await capstan.Model.load(folder, device="webgpu", capture=how["capture"], direct=how["direct"])
    opened[name] = (model, how["run_ahead"])
for _ in range(ROUNDS):
    for name, (model, ahead) in opened.items():
        params = capstan.GeneratorParams(model, run_ahead=ahead)
        params.set_search_options(do_sample=False, max_length=len(PROMPT) + TOKENS)
        params.search = capstan.SearchOptions(**{**vars(params.search), "eos_token_ids": ()})
        async with capstan.Generator(model, params) as generator:
            generator.append_tokens(PROMPT)
            ids[name] = [token async for token in generator]
            runs[name].append(1000 / generator.timing.tokens_per_second)
            report[name] = {
                "capture": generator.capture,
                "capture_note": generator.capture_note,
                "tape_passes": generator.tape_passes,
                "counters": generator.counters,
            }
for name, times in runs.items():
    report[name]["ms_per_token"] = round(statistics.median(times), 3)
    report[name]["ms_per_token_all"] = [round(time, 3) for time in times]
first = next(iter(ids.values()))
report["ids_equal"] = all(found == first for found in ids.values())
report["adapter"] = next(iter(opened.values()))[0].adapter
print(json.dumps(report))
if not report["ids_equal"]:
    sys.exit(1)
