"""The results of a bench: medians, percentiles, ratios, and whether the ids agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil
from statistics import median
from typing import Any

from .answers import rest, rows, uses
from .frames import caches, frames
from .plan import DECODE_ROWS, OWN_WEIGHTS, Step

__all__ = ["differing", "disagreements", "failures", "over_budget", "summarize"]

Outcome = dict[str, Any]
"""A step with `ok`, and `data` or `error`."""
COUNTS = ("submits", "readbacks", "bytes_down", "bytes_up", "create_buffer", "create_bind_group", "write_buffer")
BASE = "transformers_js"
SHIPPED = "tape"
"""Capstan as it is without options."""


def summarize(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """One summary a model, by its name; what was not measured is not in it."""
    by_model: dict[str, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        if outcome["ok"]:
            by_model[outcome["model"]][outcome["section"]].append(outcome)
    makers = {
        "start": starts,
        "load": load,
        "rest": rest,
        "uses": uses,
        "rows": rows,
        "decode": decode,
        "runs": runs,
        "agreement": agreement,
        "counters": counters,
        "memory": memory,
        "lengths": lengths,
        "gpu": gpu,
        "ablation": ablation,
        "frames": frames,
        "caches": caches,
    }
    found = {}
    for model, sections in by_model.items():
        counted = sections.get("counters", [])
        sections["memory"] = [step for step in counted if step.get("function") == "memory"]
        made = {name: make(sections[name]) for name, make in makers.items() if sections.get(name)}
        summary = {name: rows for name, rows in made.items() if rows}
        if summary:
            found[model] = {**summary, "ratios": ratios(summary)}
    return found


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, 95th percentile (nearest rank) and all of them."""
    ordered = sorted(values)
    return {
        "median": median(ordered),
        "p95": ordered[ceil(0.95 * len(ordered)) - 1],
        "all": [round(value, 4) for value in values],
    }


def ms_per_token(outcome: Outcome) -> float:
    """Between the first token and the last; a replay's as it was measured."""
    data = outcome["data"]
    if "ms_per_token" in data:
        return float(data["ms_per_token"])
    return float(data["rest_ms"]) / (len(data["ids"]) - 1)


def grouped(outcomes: Iterable[Outcome], *names: str) -> dict[Any, list[Outcome]]:
    groups: dict[Any, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome[names[0]] if len(names) == 1 else tuple(outcome[name] for name in names)].append(outcome)
    return groups


def starts(outcomes: list[Outcome]) -> dict[str, Any]:
    """Milliseconds from navigation, the first (cold) load apart from the median of the following ones. `phases` are
    those of the last one: when each began and ended, from the call of Capstan's `load`."""
    found: dict[str, Any] = {}
    for row, steps in grouped(outcomes, "row").items():
        times: dict[str, Any] = {}
        for name in ("pyodide_ms", "ready_ms", "loaded_ms", "first_token_ms"):
            warm = [step["data"][name] for step in steps if step["warm"] and name in step["data"]]
            cold = [step["data"][name] for step in steps if not step["warm"] and name in step["data"]]
            if warm:
                times[name] = {**spread(warm), "cold": cold[0] if cold else None}
        timelines = [step["data"]["phases"] for step in steps if step["warm"] and step["data"].get("phases")]
        found[row] = times | ({"phases": timelines[-1]} if timelines else {})
    return found


def memory(outcomes: list[Outcome]) -> dict[str, Any]:
    """Bytes of GPU buffers by contender."""
    return {step["row"]: step["data"] for step in outcomes}


def load(outcomes: list[Outcome]) -> dict[str, Any]:
    return {step["row"]: step["data"]["load_ms"] for step in outcomes}


def decode(outcomes: list[Outcome]) -> dict[str, Any]:
    """Milliseconds a token of each row, and its first round's capture."""
    rows: dict[str, Any] = {}
    for row, steps in grouped(outcomes, "row").items():
        warm = [step for step in steps if step["warm"]]
        if warm:
            about = {name: warm[0]["data"][name] for name in ("capture", "capture_note") if name in warm[0]["data"]}
            rows[row] = {**spread([ms_per_token(step) for step in warm]), **about}
    return rows


def runs(outcomes: list[Outcome]) -> dict[str, Any]:
    """By row and the tokens of a run: milliseconds a token after the first."""
    rows: dict[str, Any] = defaultdict(dict)
    for (row, tokens), steps in grouped(outcomes, "row", "tokens").items():
        warm = [ms_per_token(step) for step in steps if step["warm"]]
        if warm:
            rows[row][str(tokens)] = spread(warm)
    return dict(rows)


def agreement(outcomes: list[Outcome]) -> dict[str, Any]:
    """By the way that steps were computed: tokens forced, the share whose likeliest token is float32's, the mean and
    largest Kullback-Leibler divergence of float32's distribution from the step's, in nats; how Capstan ran them."""
    ways: dict[str, Any] = {}
    for way, steps in grouped(outcomes, "row").items():
        data = [step["data"] for step in steps]
        tokens = sum(found["tokens"] for found in data)
        ways[way] = {
            "tokens": tokens,
            "top1": sum(found["same"] for found in data) / tokens,
            "mean_divergence": sum(found["divergence"] for found in data) / tokens,
            "largest_divergence": max(found["largest"] for found in data),
            **{name: data[0][name] for name in ("capture", "capture_note", "tape_passes") if name in data[0]},
        }
    return ways


def counters(outcomes: list[Outcome]) -> dict[str, Any]:
    """Counts and host milliseconds a token, of the longer run of each row; the shorter one was for warming up.

    JavaScript's contenders are counted from the first token to the last, Capstan from the prefill to the last token.
    """
    rows: dict[str, Any] = {}
    for step in outcomes:
        if step.get("function") != "generate" or not step["warm"]:
            continue
        data = step["data"]
        tokens = len(data["ids"]) - (0 if step["contender"] == "capstan" else 1)
        found: dict[str, Any] = {name: data["counts"][name] / tokens for name in COUNTS}
        if data.get("capture") == "tape":
            # Elsewhere a burst waits for the GPU before it is submitted.
            found["host_javascript_ms"] = data["host"]["javascript"] / tokens
            found["host_python_ms"] = (data["host"]["loop"] - data["host"]["javascript"]) / tokens
            found["crossings"] = data["crossings"] / tokens
        rows[step["row"]] = found
    return rows


def lengths(outcomes: list[Outcome]) -> dict[str, Any]:
    """By row and prompt length: time to first token, prefill tokens a second, milliseconds a token after it."""
    rows: dict[str, Any] = defaultdict(dict)
    for (row, length), steps in grouped(outcomes, "row", "length").items():
        warm = [step for step in steps if step["warm"]]
        if warm:
            first = spread([step["data"]["first_ms"] for step in warm])
            rows[row][str(length)] = {
                "first_token_ms": first,
                "prefill_tokens_per_s": 1000 * length / first["median"],
                "ms_per_token": spread([ms_per_token(step) for step in warm]),
            }
    return dict(rows)


def gpu(outcomes: list[Outcome]) -> dict[str, Any]:
    """Milliseconds of a step by row and length; each operation by length; what the adapter can do at best; and by
    length, for each kind of operation, how far its memory traffic is from that."""
    found: dict[str, Any] = {"step_ms": defaultdict(dict), "operations": {}}
    for step in outcomes:
        if step["function"] == "gpu_time":
            found["step_ms"][step["row"]][str(step["length"])] = step["data"]["gpu_ms"]
        elif step["function"] == "limits":
            found["limits"] = step["data"]
        else:
            found["operations"][str(step["length"])] = step["data"]["operations"]
    if "limits" in found and found["operations"]:
        found["bandwidth"] = {
            length: bandwidth(operations, found["limits"]) for length, operations in found["operations"].items()
        }
    return {name: rows for name, rows in found.items() if rows}


def bandwidth(operations: Iterable[Mapping[str, Any]], limits: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Operations of one label and size together, those that take the most time first: how many, microseconds in all
    without what an empty dispatch takes, bytes of one, bytes a second, and that as a share of the adapter's copies.

    A rate is None where an operation takes less than an empty dispatch does, or its bytes are not known."""
    groups: dict[tuple[str, int], list[float]] = defaultdict(list)
    for operation in operations:
        groups[operation["label"], operation.get("bytes", 0)].append(operation["microseconds"])
    found = []
    for (label, size), times in groups.items():
        own = sum(max(0.0, time - (limits["empty_us"] or 0)) for time in times)
        rate = 1e6 * size * len(times) / own if own > 0 and size else None
        share = None if rate is None else rate / limits["copy_bytes_per_s"]
        row = {"label": label, "dispatches": len(times), "microseconds": own, "bytes": size}
        found.append({**row, "bytes_per_s": rate, "share_of_copy": share})
    return sorted(found, key=lambda row: -float(row["microseconds"]))


def ablation(outcomes: list[Outcome]) -> dict[str, Any]:
    """By the passes left on: milliseconds a token, GPU milliseconds a step."""
    rows: dict[str, Any] = {}
    for row, steps in grouped(outcomes, "row").items():
        warm = [step for step in steps if step["function"] == "generate" and step["warm"]]
        timed = [step["data"]["gpu_ms"] for step in steps if step["function"] == "gpu_time"]
        if warm:
            rows[row] = {"ms_per_token": spread([ms_per_token(step) for step in warm])}
            rows[row] |= {"gpu_ms": timed[0]} if timed else {}
    return rows


def ratios(summary: Mapping[str, Any]) -> dict[str, float]:
    """How many times as long the other takes, by what is compared; only what was measured."""
    found: dict[str, float] = {}

    def put(name: str, over: float | None, under: float | None) -> None:
        if over is not None and under:
            found[name] = over / under

    def at(*path: str) -> float | None:
        value: Any = summary
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return None if value is None else float(value)

    greedy, sampled = at("decode", SHIPPED, "median"), at("decode", f"{SHIPPED}_sampled", "median")
    put("decode greedy: Transformers.js / Capstan", at("decode", BASE, "median"), greedy)
    put("decode sampled: Transformers.js / Capstan", at("decode", f"{BASE}_sampled", "median"), sampled)
    put("decode greedy: wllama / Capstan", at("decode", "wllama", "median"), greedy)
    put("decode greedy: eager loop / Capstan", at("decode", "eager", "median"), greedy)
    put("decode greedy: ORT's capture / Capstan", at("decode", "capstan_ort", "median"), greedy)
    put("decode greedy: Capstan / the tape from JavaScript", greedy, at("decode", "replay", "median"))
    put("decode sampled: Capstan / the tape from JavaScript", sampled, at("decode", "replay_sampled", "median"))
    gpu_times: Mapping[str, float] = summary.get("gpu", {}).get("step_ms", {}).get(SHIPPED, {})
    if gpu_times:
        put("decode greedy: Capstan / GPU time of the step", greedy, next(iter(gpu_times.values())))
    by_length: Mapping[str, Any] = summary.get("lengths", {})
    for length in by_length.get(SHIPPED, {}):
        for name, title in ((BASE, "Transformers.js"), ("wllama", "wllama"), ("eager", "eager loop")):
            other = at("lengths", name, length, "first_token_ms", "median")
            mine = at("lengths", SHIPPED, length, "first_token_ms", "median")
            put(f"first token, {length}-token prompt: {title} / Capstan", other, mine)
    reached = sorted(map(int, by_length.get(SHIPPED, {})))
    for row, title in ((SHIPPED, "Capstan"), (BASE, "Transformers.js")):
        low = str(128 if 128 in reached[:-1] else reached[0]) if reached else ""
        if len(reached) > 1:
            ends = [at("lengths", row, length, "ms_per_token", "median") for length in (str(reached[-1]), low)]
            put(f"{title}: ms a token at length {reached[-1]} / at {low}", *ends)
    firsts = [at("start", row, "first_token_ms", "median") for row in (BASE, "capstan")]
    put("page load to first token, warm: Transformers.js / Capstan", *firsts)
    for tokens in summary.get("runs", {}).get(SHIPPED, {}):
        others = [at("runs", row, tokens, "median") for row in (BASE, SHIPPED)]
        put(f"decode greedy, {tokens} tokens: Transformers.js / Capstan", *others)
    return found


def disagreements(outcomes: Iterable[Outcome], with_truth: Collection[str] = ()) -> list[dict[str, Any]]:
    """Rows whose greedy ids, or sampled ones of Capstan, are not those of the reference row for the same prompt.

    Models `with_truth` are real ones, for which float32's ids are known: there engines may part where two tokens are
    nearly as likely, and `truth.against_float32` judges them. Only Capstan's rows of one capture, which run the same
    kernels, are held to each other here. Ids of contenders with weights of their own are not compared.

    Ids are compared in every step that has some, so that no time or count is reported for a row with unchecked ids. The
    reference is the untouched one: the eager loop in JavaScript, else the first row there is; Capstan's rows are
    compared with one another too. `at` is the first place that differs. A row that differs from itself in another round
    is in the list as well.
    """
    found: list[dict[str, Any]] = []
    sampled = {row.key for row in DECODE_ROWS if row.sampled}
    told: dict[Any, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if not outcome["ok"] or "ids" not in outcome["data"] or outcome["section"] == "frames":
            # Rows of frames differ in how a prompt is cut, which rounding shows; the table tells how many answers came.
            continue
        row, contender, model = outcome["row"], outcome["contender"], outcome["model"]
        if contender in OWN_WEIGHTS or (row in sampled and contender != "capstan"):
            continue
        prompt = (outcome["length"], outcome.get("chat"))
        alike: tuple[Any, ...] = (model, outcome["section"], *prompt, outcome.get("tokens"), row in sampled)
        if model in with_truth:
            alike = (*alike, contender, outcome["data"].get("capture"), row if outcome["section"] == "ablation" else "")
        told[alike].append(outcome)
    for (model, section, length, *_), steps in told.items():
        first = {step["row"]: step["data"]["ids"] for step in reversed(steps)}
        capstan = [step["row"] for step in steps if step["contender"] == "capstan"]
        references = [row for row in ("eager", capstan[0] if capstan else None, next(iter(first))) if row in first]
        noted: set[tuple[str, str]] = set()
        for step in steps:
            others = {references[0]} | ({capstan[0]} if step["contender"] == "capstan" else set()) | {step["row"]}
            for other in sorted(name for name in others if name):
                at = first_difference(step["data"]["ids"], first[other])
                if at is not None and (step["row"], other) not in noted:
                    noted.add((step["row"], other))
                    where = {"model": model, "section": section, "length": length}
                    strict = step["contender"] == "capstan" and other in capstan
                    found.append({**where, "row": step["row"], "against": other, "at": at, "strict": strict})
    return found


def over_budget(outcomes: Iterable[Outcome]) -> list[str]:
    """Lists the steps of a tape that exceeded their budget of WebGPU calls, a line each.

    The budget of n tokens: no buffer, bind group or write; a submit and a readback for the first token and one for
    every K after it (or, where K adapts, as many as the bursts that Python got); 4 bytes read a token.
    """
    found = []
    for step in outcomes:
        counted = step["section"] == "counters" and step.get("function") == "generate" and step["ok"]
        if not counted or step["data"].get("capture") != "tape":
            continue
        data, ahead = step["data"], step["run_ahead"]
        tokens = len(data["ids"])
        bursts = data["crossings"] if ahead is None else 1 + ceil((tokens - 1) / ahead)
        budget = {"create_buffer": 0, "create_bind_group": 0, "write_buffer": 0, "bytes_up": 0}
        budget |= {"submits": bursts, "readbacks": bursts, "bytes_down": 4 * tokens}
        for name, allowed in budget.items():
            if data["counts"][name] > allowed:
                where = f"{step['model']} {step['row']}, {tokens} tokens"
                found.append(f"{where}: {data['counts'][name]} {name}, at most {allowed} are allowed")
    return found


def differing(report: Mapping[str, Any], model: str, section: str) -> dict[str, str]:
    """By row of a section: what is to be said beside its times, where ids differ."""
    found: dict[str, str] = {}
    for entry in report["disagreements"]:
        if (entry["model"], entry["section"]) == (model, section):
            told = f"ids differ from {entry['against']} at token {entry['at']}"
            found[entry["row"]] = f"{told}, prompt of {entry['length']}"
    return found


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int | None:
    """The first place where two lists differ, or None."""
    for place, (one, other) in enumerate(zip(ids, others, strict=False)):
        if one != other:
            return place
    return None if len(ids) == len(others) else min(len(ids), len(others))


def failures(steps: Sequence[Step], outcomes: Sequence[Outcome]) -> list[str]:
    """Steps that failed, are missing or ran in another capture than was asked for, in a line each."""
    by_id = {outcome["id"]: outcome for outcome in outcomes}
    found = []
    for outcome in outcomes:
        asked = (outcome.get("asked") or {}).get("capture")
        used = (outcome.get("data") or {}).get("capture")
        if asked and used and asked != used:
            note = outcome["data"].get("capture_note")
            found.append(
                f"{outcome['model']} {outcome['section']} {outcome['row']}: ran as '{used}', not '{asked}': {note}"
            )
    for step in steps:
        played = by_id.get(step["id"])
        if played is None or not played["ok"]:
            name = " ".join(str(step[key]) for key in ("model", "section", "function", "row", "length") if key in step)
            found.append(f"{name}: {(played or {}).get('error', 'missing').strip().splitlines()[0][:300]}")
    return found
