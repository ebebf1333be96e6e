"""The plan of the bench: sections of steps, each played by one contender in the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .frames import HARDWARE_FRAMES, SOFTWARE_FRAMES, FramesExtent, plan_caches, plan_frames
from .subjects import Subject, prompt_for

__all__ = [
    "AGREEMENT_WAYS",
    "COUNTED_ROWS",
    "DECODE_ROWS",
    "LENGTH_ROWS",
    "OWN_WEIGHTS",
    "SECTIONS",
    "Extent",
    "Row",
    "Step",
    "extent",
    "plan",
]

Step = dict[str, Any]
"""id, model, section, action of the page, its arguments, `limit` in seconds; the other keys say its purpose."""

SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
SEEDED = {**SAMPLING, "random_seed": 7}


@dataclass(frozen=True)
class Row:
    """One contender in one mode: a row of a table."""

    key: str
    title: str
    contender: str
    """'transformers_js', 'wllama', 'eager' or 'capstan'."""
    function: str = "generate"
    sampled: bool = False
    arguments: Mapping[str, Any] | None = None

    def call(self, asked: Step, **arguments: Any) -> Step:
        """The part of a step that has this row play after a prompt."""
        sampling = dict(SEEDED if self.contender == "capstan" else SAMPLING) if self.sampled else None
        given = {**prompt_for(asked, self.contender), "sampling": sampling, **(self.arguments or {}), **arguments}
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
    Row("wllama", "wllama, greedy", "wllama"),
    Row("wllama_sampled", "wllama, sampled", "wllama", sampled=True),
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

LENGTH_ROWS = tuple(row for row in DECODE_ROWS if row.key in ("transformers_js", "wllama", "eager", "tape"))
RUN_ROWS = tuple(row for row in DECODE_ROWS if row.key in ("transformers_js", "tape"))
OWN_WEIGHTS = ("wllama",)
"""Contenders that read another file of weights: their ids are their own."""
COUNTED_ROWS = (
    *(row for row in DECODE_ROWS if row.contender in ("transformers_js", "eager")),
    Row("tape_8", "Capstan, tape, K = 8, greedy", "capstan", arguments={**TAPE, "run_ahead": 8}),
    *(row for row in DECODE_ROWS if row.function == "generate" and row.contender == "capstan"),
)
"""One of Capstan's tapes comes first, so that memory is read before other captures are open."""
LEFT_OUT = ("transformers_js_sampled", "capstan_off", "capstan_ort", "tape_1", "tape")
"""Counted rows that a larger model on a software adapter goes without."""
LOADED: dict[str, list[dict[str, str]]] = {
    "transformers_js": [{}],
    "wllama": [{}],
    "eager": [{}],
    "capstan": [{"capture": c} for c in ("tape", "ort", "off")],
}

AGREEMENT_WAYS: dict[str, Step] = {
    "fused": {"contender": "capstan", "args": TAPE},
    "replayed": {"contender": "capstan", "args": {**TAPE, "passes": ["clears", "direct"]}},
    "eager": {"contender": "eager", "args": {}},
}
"""How the steps are computed whose probabilities are compared with float32's: by Capstan's kernels, by
onnxruntime-web's from a tape, by onnxruntime-web's in an eager loop."""

SECTIONS = {
    "cases": "correctness: greedy ids against onnxruntime-genai's, operations on device memory",
    "start": "page load to first token",
    "load": "load times, runtimes started",
    "rest": "an answer of 100 tokens after ten seconds of rest, and one right after another",
    "decode": "ms a token, rounds of all contenders",
    "runs": "ms a token of short and of long runs",
    "agreement": "probabilities against float32's over given texts, for models with chats",
    "transcript": "what the model answers, for models with chats",
    "lengths": "time to first token and ms a token by prompt length",
    "gpu": "GPU time of a step, by length and operation",
    "ablation": "the tape with all passes, none, all but one",
    "frames": "gaps between the frames of a page that draws, while a prompt and its tokens run",
    "caches": "ms a token with KV caches written in place and apart",
    "counters": "what WebGPU is asked for by a token, host time, GPU memory; in workers of its own",
    "uses": "the first and later uses of each feature in a page; in a worker of its own",
    "rows": "ms a step of several rows, of beams and of an engine with several requests",
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
    runs: tuple[int, ...]
    """Tokens of the runs section."""
    run_rounds: int
    starts: int
    counted: int
    """Tokens of the run before the counted one, which has twice as many."""
    ablation_rounds: int
    limit: float
    """Seconds for one step."""
    drawn: FramesExtent
    """The extent of the sections frames and caches."""
    only_counted_from: int | None = None
    """Models with at least this many bytes of weights have only their counters measured."""


HARDWARE = Extent(5, 96, (16, 128, 512, 1024, 2048, 4000), 2, 24, (16, 256), 3, 2, 32, 1, 90, HARDWARE_FRAMES)
SOFTWARE = Extent(2, 12, (16, 64), 1, 4, (4, 12), 1, 1, 6, 1, 120, SOFTWARE_FRAMES, only_counted_from=4_000_000)
GPU_STEPS = 32
OPERATION_REPEATS = 16


def extent(software: bool, named: bool = False) -> Extent:
    """How much to measure on an adapter; sections that the user `named` are measured for models of any size."""
    found = SOFTWARE if software else HARDWARE
    return replace(found, only_counted_from=None) if named else found


def plan(
    models: Mapping[str, Path],
    sections: Sequence[str],
    measured: Extent,
    passes: Sequence[str],
    cases: Sequence[Step],
    without: Sequence[str] = (),
) -> list[Step]:
    """All steps in order; `without` names contenders and rows to leave out."""
    steps: list[Step] = []
    makers: dict[str, Callable[[Subject, Extent], Iterator[Step]]] = {
        "cases": lambda subject, _: (case for case in cases if case["for"] == subject.name),
        "start": starts,
        "load": load,
        "rest": rest,
        "decode": decode,
        "runs": runs,
        "agreement": agreement,
        "transcript": transcript,
        "lengths": lengths,
        "gpu": gpu,
        "ablation": lambda subject, measured: ablation(subject, measured, passes),
        "frames": lambda subject, measured: plan_frames(subject, measured.drawn),
        "caches": lambda subject, measured: plan_caches(subject, measured.drawn),
        "counters": counters,
        "uses": uses,
        "rows": rows,
    }
    for name, folder in models.items():
        subject = Subject.of(name, folder)
        heavy = measured.only_counted_from is not None and subject.weights >= measured.only_counted_from
        # A model with chats is asked for by its folder: it is no part of a suite on a software adapter.
        light = heavy and not subject.chats
        for section in SECTIONS:
            if section not in sections or (light and section not in ("cases", "counters")):
                continue
            for step in makers[section](subject, measured):
                if light and step.get("row") in LEFT_OUT:
                    continue
                contender = step.get("contender", "capstan")
                if {contender, step.get("row")} & {*without} or not subject.plays(contender):
                    continue
                steps.append({"limit": measured.limit, **step, "model": name, "section": section})
        steps.append({"limit": measured.limit, "model": name, "section": "end", "action": "end"})
    return [{"id": number, **step} for number, step in enumerate(steps)]


def rotated(rows: Sequence[Row], subject: Subject, by: int) -> list[Row]:
    """The rows that the model is there for, from another one on; a replay stays behind the row whose bursts it
    repeats."""
    there = [row for row in rows if subject.plays(row.contender)]
    turn = by % len(there)
    return [*there[turn:], *there[:turn]]


def starts(subject: Subject, measured: Extent) -> Iterator[Step]:
    asked = subject.prompt()
    for turn in range(measured.starts + 1):
        for contender in ("transformers_js", "wllama", "capstan"):
            if not subject.plays(contender):
                continue
            way = TAPE if contender == "capstan" else {}
            args = {"model": subject.address, **prompt_for(asked, contender), **way}
            start = {"action": "start", "contender": contender, "row": contender, "warm": turn > 0, "args": args}
            yield {**start, **placed(asked)}


def placed(asked: Step) -> Step:
    """The prompt of a step: its length, and the number of its chat."""
    length = asked["length"] if "length" in asked else len(asked["prompt"])
    return {"length": length, **({"chat": asked["chat"]} if "chat" in asked else {})}


WARM_UP_DECODE = 32
WARM_UP_PROMPT = 4
"""Tokens of the untimed calls before each timed one, of the same contender with the same prompt: a GPU that a contender
leaves idle between its tokens clocks down, which would slow the next one."""


def load(subject: Subject, measured: Extent) -> Iterator[Step]:
    for contender, ways in LOADED.items():
        for options in ways:
            args = {"model": subject.address, **options}
            call = {"action": "call", "contender": contender, "function": "load", "args": args}
            yield {**call, "row": "_".join([contender, *options.values()])}


REST_S, ANSWER_TOKENS, ANSWERS = 10, 100, 3


def rest(subject: Subject, measured: Extent) -> Iterator[Step]:
    for turn in range(ANSWERS + 1):
        asked = subject.prompt(turn)
        for row, seconds in (("after a rest", REST_S if turn else 0), ("right after it", 0)):
            given = {"tokens": ANSWER_TOKENS, "rest_s": seconds, **TAPE, **prompt_for(asked, "capstan")}
            call = {"action": "call", "contender": "capstan", "function": "answer", "row": row, "warm": turn > 0}
            yield {**call, **placed(asked), "args": {"model": subject.address, **given}}


def decode(subject: Subject, measured: Extent) -> Iterator[Step]:
    for turn in range(measured.rounds + 1):
        asked = subject.prompt(turn)
        # The first round warms everything up, and in order: a replay repeats bursts that were seen.
        for row in rotated(DECODE_ROWS, subject, max(0, turn - 1)):
            call = row.call(asked, model=subject.address, tokens=measured.tokens)
            yield {**call, **placed(asked), "round": turn, "warm": turn > 0, "warm_up": WARM_UP_DECODE if turn else 0}


def runs(subject: Subject, measured: Extent) -> Iterator[Step]:
    for tokens in measured.runs:
        for turn in range(measured.run_rounds + 1):
            asked = subject.prompt(turn)
            for row in rotated(RUN_ROWS, subject, turn):
                call = row.call(asked, model=subject.address, tokens=tokens)
                said = {"tokens": tokens, "round": turn, "warm": turn > 0, "warm_up": WARM_UP_DECODE if turn else 0}
                yield {**call, **placed(asked), **said}


def agreement(subject: Subject, measured: Extent) -> Iterator[Step]:
    """Each chat's reply forced on each way of computing a step."""
    for way, step in AGREEMENT_WAYS.items():
        for place in range(len(subject.chats)):
            args = {"model": subject.address, "chat": place, **step["args"]}
            call = {"action": "call", "contender": step["contender"], "function": "agreement", "row": way}
            yield {**call, "chat": place, "args": args}


def transcript(subject: Subject, measured: Extent) -> Iterator[Step]:
    for place, chat in enumerate(subject.chats):
        args = {"model": subject.address, "prompt": list(chat.prompt), "tokens": measured.tokens, **TAPE}
        call = {"action": "call", "contender": "capstan", "function": "transcript", "row": "tape"}
        yield {**call, "chat": place, "args": args}


def counters(subject: Subject, measured: Extent) -> Iterator[Step]:
    asked = subject.prompt()
    # New workers: counting begins before a device is made, and no other section is slowed by it.
    yield {"action": "end", "row": "new workers"}
    started: set[str] = set()
    for row in COUNTED_ROWS:
        if row.contender not in started:
            loading = {"model": subject.address, "counting": True, **(TAPE if row.contender == "capstan" else {})}
            shared = {"action": "call", "contender": row.contender, "row": row.contender, "warm": False}
            yield {**shared, "function": "load", "args": loading}
        for tokens in (measured.counted, 2 * measured.counted):
            call = row.call(asked, model=subject.address, tokens=tokens, counting=True)
            ahead = (row.arguments or {}).get("run_ahead")
            yield {**call, **placed(asked), "warm": tokens > measured.counted, "tokens": tokens, "run_ahead": ahead}
        if row.contender not in started:
            yield {**shared, "function": "memory", "args": {}}
        started.add(row.contender)


USES, USE_TOKENS = 10, 24


def uses(subject: Subject, measured: Extent) -> Iterator[Step]:
    yield {"action": "end", "row": "new workers"}
    args = {"model": subject.address, "times": USES, "tokens": USE_TOKENS}
    # A second worker finds what the first one stored.
    for visit in ("first visit", "warm page"):
        call = {"action": "call", "contender": "capstan", "function": "uses", "args": args}
        yield {**call, "row": visit, "limit": 4 * measured.limit}
        yield {"action": "end", "row": "new workers"}


def rows(subject: Subject, measured: Extent) -> Iterator[Step]:
    args = {"model": subject.address, "times": measured.run_rounds, "tokens": measured.tokens, "function": "paces"}
    call = {"action": "call", "contender": "capstan", "function": "uses", "row": "rows", "args": args}
    yield {**call, "limit": 4 * measured.limit}


def lengths(subject: Subject, measured: Extent) -> Iterator[Step]:
    for length in measured.lengths:
        if length + measured.length_tokens > subject.context:
            continue
        asked = subject.long_prompt(length)
        for turn in range(measured.length_rounds + 1):
            for row in rotated(LENGTH_ROWS, subject, turn):
                call = row.call(asked, model=subject.address, tokens=measured.length_tokens)
                yield {
                    **call,
                    "round": turn,
                    "warm": turn > 0,
                    "length": length,
                    "warm_up": WARM_UP_PROMPT if turn else 0,
                }


def gpu(subject: Subject, measured: Extent) -> Iterator[Step]:
    room = 2 * GPU_STEPS
    reached = [length for length in measured.lengths if length + room <= subject.context]
    if not reached:
        return
    shared = {"action": "call", "contender": "capstan"}
    for length in reached:
        prompt = prompt_for(subject.long_prompt(length), "capstan")
        for sampled in (False, True) if length == reached[0] else (False,):
            args = {
                "model": subject.address,
                **prompt,
                "steps": GPU_STEPS,
                "sampling": SEEDED if sampled else None,
                **TAPE,
            }
            call = {"function": "gpu_time", "row": "tape_sampled" if sampled else "tape", "length": length}
            yield {**shared, **call, "args": args}
    yield {**shared, "function": "limits", "row": "copies", "length": 0, "args": {}}
    for length in sorted({reached[0], reached[-1]}):
        prompt = prompt_for(subject.long_prompt(length), "capstan")
        args = {"model": subject.address, **prompt, "repeats": OPERATION_REPEATS, **TAPE}
        yield {**shared, "function": "operations", "row": "tape", "length": length, "args": args}


def ablation(subject: Subject, measured: Extent, passes: Sequence[str]) -> Iterator[Step]:
    if not passes:
        return
    asked = subject.prompt()
    ways: dict[str, list[str] | None] = {"all": None, "none": []}
    ways |= {f"all but {left}": [p for p in passes if p != left] for left in passes}
    shared = {"action": "call", "contender": "capstan"}
    for title, chosen in ways.items():
        given = {"model": subject.address, **TAPE, **({} if chosen is None else {"passes": chosen})}
        for turn in range(measured.ablation_rounds + 1):
            args = {**given, **prompt_for(asked, "capstan"), "tokens": measured.tokens}
            call = {**shared, "function": "generate", "row": title, "round": turn, "warm": turn > 0, "args": args}
            yield {**call, **placed(asked)}
        args = {**given, **prompt_for(asked, "capstan"), "steps": GPU_STEPS}
        yield {**shared, "function": "gpu_time", "row": title, "args": args}
        if chosen is not None:
            yield {**shared, "function": "unload", "row": title, "args": given}
