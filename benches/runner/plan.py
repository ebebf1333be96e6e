"""What the bench measures: sections of steps, each played by one contender in the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "COUNTED_ROWS",
    "DECODE_ROWS",
    "LENGTH_ROWS",
    "SECTIONS",
    "Extent",
    "Row",
    "Step",
    "extent",
    "plan",
    "prompt_ids",
]

Step = dict[str, Any]
"""id, model, section, action of the page, its arguments, `limit` in seconds; the other keys say what it is for."""

SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
SEEDED = {**SAMPLING, "random_seed": 7}


@dataclass(frozen=True)
class Row:
    """One contender in one mode: a row of a table."""

    key: str
    title: str
    contender: str
    """'transformers_js', 'eager' or 'capstan'."""
    function: str = "generate"
    sampled: bool = False
    arguments: Mapping[str, Any] | None = None

    def call(self, **arguments: Any) -> Step:
        """The part of a step that has this row play."""
        sampling = dict(SEEDED if self.contender == "capstan" else SAMPLING) if self.sampled else None
        given = {"sampling": sampling, **(self.arguments or {}), **arguments}
        return {
            "action": "call",
            "row": self.key,
            "contender": self.contender,
            "function": self.function,
            "args": given,
        }


TAPE = {"capture": "tape"}
DECODE_ROWS = (
    Row("transformers_js", "Transformers.js, greedy", "transformers_js"),
    Row("transformers_js_sampled", "Transformers.js, sampled", "transformers_js", sampled=True),
    Row("eager", "onnxruntime-web, eager loop, arg-max in JavaScript", "eager"),
    Row("capstan_off", "Capstan, no capture, greedy", "capstan", arguments={"capture": "off"}),
    Row("capstan_ort", "Capstan, onnxruntime-web's own capture, greedy", "capstan", arguments={"capture": "ort"}),
    Row("tape_1", "Capstan, tape, K = 1, greedy", "capstan", arguments={**TAPE, "run_ahead": 1}),
    Row("tape_1_sampled", "Capstan, tape, K = 1, sampled", "capstan", "generate", True, {**TAPE, "run_ahead": 1}),
    Row("tape", "Capstan, tape, adaptive K, greedy", "capstan", arguments=TAPE),
    Row("tape_sampled", "Capstan, tape, adaptive K, sampled", "capstan", "generate", True, TAPE),
    Row("replay", "the same tape from JavaScript alone, greedy", "capstan", "replay", arguments=TAPE),
    Row("replay_sampled", "the same tape from JavaScript alone, sampled", "capstan", "replay", True, TAPE),
)
"""Those of a round, in the order of the first one; `replay` plays bursts as long as the `tape` row before it."""

LENGTH_ROWS = tuple(row for row in DECODE_ROWS if row.key in ("transformers_js", "eager", "tape"))
COUNTED_ROWS = (
    *(row for row in DECODE_ROWS if row.contender != "capstan"),
    Row("tape_8", "Capstan, tape, K = 8, greedy", "capstan", arguments={**TAPE, "run_ahead": 8}),
    *(row for row in DECODE_ROWS if row.function == "generate" and row.contender == "capstan"),
)
"""Of Capstan a tape's first, so that memory is read before other captures are open."""
LEFT_OUT = ("transformers_js_sampled", "capstan_off", "capstan_ort", "tape_1", "tape")
"""Counted rows that a larger model on a software adapter goes without."""
LOADED: dict[str, list[dict[str, str]]] = {
    "transformers_js": [{}],
    "eager": [{}],
    "capstan": [{"capture": c} for c in ("tape", "ort", "off")],
}

SECTIONS = {
    "cases": "correctness: greedy ids against onnxruntime-genai's, operations on device memory",
    "start": "page load to first token",
    "load": "load times, runtimes started",
    "decode": "ms a token, rounds of all contenders",
    "lengths": "time to first token and ms a token by prompt length",
    "gpu": "GPU time of a step, by length and operation",
    "ablation": "the tape with all passes, none, all but one",
    "counters": "what WebGPU is asked for by a token, host time, GPU memory; in workers of its own",
}


@dataclass(frozen=True)
class Extent:
    """How much is measured: an adapter in software takes a thousand times as long."""

    rounds: int
    tokens: int
    """Decoded in a round."""
    lengths: tuple[int, ...]
    """Prompts; the model's context cuts them short."""
    length_rounds: int
    length_tokens: int
    starts: int
    counted: int
    """Tokens of the run before the counted one, which has twice as many."""
    ablation_rounds: int
    limit: float
    """Seconds for one step."""
    only_counted_from: int | None = None
    """Of a model with as many bytes of weights only the counters are measured."""


HARDWARE = Extent(5, 96, (16, 128, 512, 1024, 2048, 4000), 2, 24, 2, 32, 1, 90)
SOFTWARE = Extent(2, 12, (16, 64), 1, 4, 1, 6, 1, 120, only_counted_from=4_000_000)
PROMPT_TOKENS = 16
GPU_STEPS = 32
OPERATION_REPEATS = 16


def extent(software: bool) -> Extent:
    """How much to measure on an adapter."""
    return SOFTWARE if software else HARDWARE


def prompt_ids(length: int, vocabulary: int) -> list[int]:
    """A prompt that any model can be told: ids spread over the vocabulary, the same each time."""
    return [3 + (7919 * i + 104729) % (vocabulary - 3) for i in range(length)]


def plan(
    models: Mapping[str, Path],
    sections: Sequence[str],
    measured: Extent,
    passes: Sequence[str],
    cases: Sequence[Step],
    without: Sequence[str] = (),
) -> list[Step]:
    """All steps in order; `without` names contenders to leave out."""
    steps: list[Step] = []
    for name, folder in models.items():
        config = json.loads((folder / "genai_config.json").read_text())["model"]
        makers: dict[str, Callable[[str, Mapping[str, Any], Extent], Iterator[Step]]] = {
            "cases": lambda name, *_: (case for case in cases if case["for"] == name),
            "start": starts,
            "load": load,
            "decode": decode,
            "lengths": lengths,
            "gpu": gpu,
            "ablation": lambda name, config, measured: ablation(name, config, measured, passes),
            "counters": counters,
        }
        weights = (folder / f"{config['decoder']['filename']}.data").stat().st_size
        light = measured.only_counted_from is not None and weights >= measured.only_counted_from
        for section in SECTIONS:
            if section not in sections or (light and section not in ("cases", "counters")):
                continue
            for step in makers[section](name, config, measured):
                if light and step.get("row") in LEFT_OUT:
                    continue
                if step.get("contender") not in without:
                    steps.append({"limit": measured.limit, **step, "model": name, "section": section})
        steps.append({"limit": measured.limit, "model": name, "section": "end", "action": "end"})
    return [{"id": number, **step} for number, step in enumerate(steps)]


def rotated(rows: Sequence[Row], by: int) -> list[Row]:
    """The rows from another one on; a replay stays behind the row whose bursts it repeats."""
    turn = by % len(rows)
    return [*rows[turn:], *rows[:turn]]


def starts(name: str, config: Mapping[str, Any], measured: Extent) -> Iterator[Step]:
    prompt = prompt_ids(PROMPT_TOKENS, config["vocab_size"])
    for turn in range(measured.starts + 1):
        for contender in ("transformers_js", "capstan"):
            args = {"model": name, "prompt": prompt, **(TAPE if contender == "capstan" else {})}
            start = {"action": "start", "contender": contender, "row": contender, "warm": turn > 0, "args": args}
            yield {**start, "length": len(prompt)}


WARM_UP_DECODE = 32
WARM_UP_PROMPT = 4
"""Tokens of the untimed call before each timed one, of the same contender with the same prompt: a GPU that a contender
leaves idle between its tokens clocks down, and whoever comes next would pay for that."""


def load(name: str, config: Mapping[str, Any], measured: Extent) -> Iterator[Step]:
    for contender, ways in LOADED.items():
        for options in ways:
            call = {"action": "call", "contender": contender, "function": "load", "args": {"model": name, **options}}
            yield {**call, "row": "_".join([contender, *options.values()])}


def decode(name: str, config: Mapping[str, Any], measured: Extent) -> Iterator[Step]:
    prompt = prompt_ids(PROMPT_TOKENS, config["vocab_size"])
    for turn in range(measured.rounds + 1):
        # The first round warms everything up, and in order: a replay repeats bursts that were seen.
        for row in rotated(DECODE_ROWS, max(0, turn - 1)):
            call = row.call(model=name, prompt=prompt, tokens=measured.tokens)
            yield {**call, "round": turn, "warm": turn > 0, "length": len(prompt), "warm_up": WARM_UP_DECODE}


def counters(name: str, config: Mapping[str, Any], measured: Extent) -> Iterator[Step]:
    prompt = prompt_ids(PROMPT_TOKENS, config["vocab_size"])
    # New workers: counting begins before a device is made, and no other section is slowed by it.
    yield {"action": "end", "row": "new workers"}
    asked: set[str] = set()
    for row in COUNTED_ROWS:
        if row.contender not in asked:
            loading = {"model": name, "counting": True, **(TAPE if row.contender == "capstan" else {})}
            shared = {"action": "call", "contender": row.contender, "row": row.contender, "warm": False}
            yield {**shared, "function": "load", "args": loading}
        for tokens in (measured.counted, 2 * measured.counted):
            call = row.call(model=name, prompt=prompt, tokens=tokens, counting=True)
            ahead = (row.arguments or {}).get("run_ahead")
            warm = {"warm": tokens > measured.counted, "length": len(prompt)}
            yield {**call, **warm, "tokens": tokens, "run_ahead": ahead}
        if row.contender not in asked:
            yield {**shared, "function": "memory", "args": {}}
        asked.add(row.contender)


def lengths(name: str, config: Mapping[str, Any], measured: Extent) -> Iterator[Step]:
    for length in measured.lengths:
        if length + measured.length_tokens > config["context_length"]:
            continue
        prompt = prompt_ids(length, config["vocab_size"])
        for turn in range(measured.length_rounds + 1):
            for row in rotated(LENGTH_ROWS, turn):
                call = row.call(model=name, prompt=prompt, tokens=measured.length_tokens)
                yield {**call, "round": turn, "warm": turn > 0, "length": length, "warm_up": WARM_UP_PROMPT}


def gpu(name: str, config: Mapping[str, Any], measured: Extent) -> Iterator[Step]:
    room = 2 * GPU_STEPS
    reached = [length for length in measured.lengths if length + room <= config["context_length"]]
    if not reached:
        return
    shared = {"action": "call", "contender": "capstan"}
    for length in reached:
        prompt = prompt_ids(length, config["vocab_size"])
        for sampled in (False, True) if length == reached[0] else (False,):
            args = {
                "model": name,
                "prompt": prompt,
                "steps": GPU_STEPS,
                "sampling": SEEDED if sampled else None,
                **TAPE,
            }
            call = {"function": "gpu_time", "row": "tape_sampled" if sampled else "tape", "length": length}
            yield {**shared, **call, "args": args}
    for length in (reached[0], reached[-1]):
        args = {"model": name, "prompt": prompt_ids(length, config["vocab_size"]), "repeats": OPERATION_REPEATS, **TAPE}
        yield {**shared, "function": "operations", "row": "tape", "length": length, "args": args}


def ablation(name: str, config: Mapping[str, Any], measured: Extent, passes: Sequence[str]) -> Iterator[Step]:
    if not passes:
        return
    prompt = prompt_ids(PROMPT_TOKENS, config["vocab_size"])
    ways: dict[str, list[str] | None] = {"all": None, "none": []}
    ways |= {f"all but {left}": [p for p in passes if p != left] for left in passes}
    shared = {"action": "call", "contender": "capstan"}
    for title, chosen in ways.items():
        given = {"model": name, **TAPE, **({} if chosen is None else {"passes": chosen})}
        for turn in range(measured.ablation_rounds + 1):
            args = {**given, "prompt": prompt, "tokens": measured.tokens}
            call = {**shared, "function": "generate", "row": title, "round": turn, "warm": turn > 0, "args": args}
            yield {**call, "length": len(prompt)}
        args = {**given, "prompt": prompt, "steps": GPU_STEPS}
        yield {**shared, "function": "gpu_time", "row": title, "args": args}
        if chosen is not None:
            yield {**shared, "function": "unload", "row": title, "args": given}
