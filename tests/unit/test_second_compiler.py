"""naga compiles every WGSL text of Capstan: otherwise users of Firefox would be the first to see its errors.

few_rows_matrices.wgsl, matmul_matrices.wgsl and prefill_attention.wgsl are left out: only Chromium has the subgroup
matrices they use."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product as combinations
from pathlib import Path
from typing import Any

import pytest

from capstan.stages import TimestampTokens
from capstan.stages.program import Drafting
from capstan.stages.search import SearchOptions
from capstan.tape import MatVec, WorkgroupLimits
from capstan.tape.operation import Operation
from capstan.tape.ops.attended_product import AttendedProduct
from capstan.tape.ops.attention import Attention, HeadNorms
from capstan.tape.ops.convolution import Convolution
from capstan.tape.ops.delta_rule import DeltaRule, GatedHeadNorm
from capstan.tape.ops.gemv import Factor
from capstan.tape.ops.head_gate import HeadGate
from capstan.tape.ops.lookup import Lookup
from capstan.tape.ops.matmul import MatMul, Quantize
from capstan.tape.ops.norm import CenteredNorm, RmsNorm
from capstan.tape.ops.normed_recurrence import NormedDeltaRule
from capstan.tape.ops.position_row import PositionRow
from capstan.tape.witness import CacheRows, Witness, cache_rows
from tests.second_compiler import Naga
from tests.unit.shader_declarations import answered

SHADERS = Path(__file__).parents[2] / "web/src/worker/shaders"
LIMITS = (
    WorkgroupLimits(),
    WorkgroupLimits(buffers=10),
    WorkgroupLimits(software=True),
    *(WorkgroupLimits(lanes) for lanes in (4, 8, 16, 32, 64)),
    WorkgroupLimits(32, 1024, 32768, buffers=16),
)
BEFORE: tuple[dict[str, Any], ...] = (
    {},
    {"norm": RmsNorm(1, 0.5)},
    {"norm": CenteredNorm(1, 0.5, 2)},
    {"norm": RmsNorm(1, 0.5), "wide": True},
    {"norm": RmsNorm(1, 0.5), "inner": RmsNorm(3, 0.25)},
    {"norm": RmsNorm(1, 0.5), "inner": RmsNorm(3, 0.25), "total": True},
)
INNER: tuple[dict[str, Any], ...] = (
    {},
    {"residual": True},
    {"residual": True, "second": True, "bias": True},
    {"up": True},
    {"up": True, "gelu": True, "bias": True},
    {"activated": True},
    {"activated": True, "gelu": True},
    {"activated": True, "gelu": True, "erf": True},
    {"activated": True, "power": 4},
    {"factor": Factor(5)},
    {"factor": Factor(5, divides=True)},
    {"factor": Factor(5, capped=True)},
)
WEIGHTS: tuple[dict[str, Any], ...] = (
    {"scales": 7, "block": 32},
    {"scales": 7, "block": 128, "zeros": 8},
    {"scales": 7, "block": 16},
    {"scales": 7, "block": 16, "zeros": 8, "bits": 8},
    {"scales": 7, "block": 32, "bits": 8},
    {"scales": 7, "block": 32, "minima": 9},
    {"scales": 7, "block": 16, "bits": 8, "minima": 9, "first": 32, "of": 8192},
)


def products(seed: int) -> Iterator[tuple[Operation, int, int]]:
    """Operations, and how many values they read and write. All of what may be behind a product, each with some of what
    may be before it, of the forms and sizes of weights, and of the numbers of rows."""
    numbers = random.Random(seed)
    for behind, element, quantized in combinations(INNER, ("f32", "f16"), (True, False)):
        for rows in (1, numbers.choice([2, 8, 40])):
            before = dict(numbers.choice(BEFORE))
            if element == "f32":
                before.pop("wide", None)
            if not quantized and (type(before.get("norm")) is not RmsNorm or len(before) > 1):
                before = {}
            weights = dict(numbers.choice(WEIGHTS)) if quantized else {"scales": None, "block": 0}
            about = {**behind, **weights, **before}
            if about.get("up"):
                parts = [("scales", 12), ("zeros", 13), ("minima", 14)]
                about["up"] = (11, *(None if about.get(name) is None else id_ for name, id_ in parts))
            n, k = numbers.choice(((96, 128), (2048, 4096), (4096, 256), (96, 144)))
            what = MatVec(weights=6, n=n, k=k, element=element, rows=rows, **about)
            yield what, len(what.inputs), 2 if what.total else 1


def others(head: int) -> Iterator[tuple[Operation, int, int]]:
    norms = (None, HeadNorms(1, 2, 0.5), HeadNorms(1, 2, 0.5, 3))
    forms: list[dict[str, Any]] = [
        {},
        {"rotary": 32, "interleaved": True},
        {"sinks": 9, "window": 64},
        {"softcap": 30.0},
        {"rows": 4},
        {"rows": 4, "tabled": True},
        {"rows": 4, "along": True, "sinks": 9},
        {"cache_bits": 4, "sinks": 9},
        {"cache_bits": 4, "rows": 4, "tabled": True, "rotary": 32, "interleaved": True},
        {"cache_bits": 4, "rows": 4, "along": True, "slides": True},
        {"cache_bits": 4, "rows": 4, "slides": True},
        {"rows": 4, "along": True, "interleaved": True, "softcap": 30.0},
        {"rows": 4, "packed": True, "sinks": 9},
        {"shares": True, "window": 64},
        {"shares": True, "rows": 4, "sinks": 9},
        {"rows": 4, "packed": True, "slides": True, "window": 64},
        {"rotary": 32, "gated": True},
        {"rows": 4, "along": True, "gated": True},
    ]
    for element, by, form in combinations(("f32", "f16"), norms, forms):
        about = {"rotary": 0, **form}
        yield Attention(8, 2, head, 300, 0.25, 21, 22, 23, 24, element, by, **about), 1, 1
    for element, group in combinations(("f32", "f16"), (32, 128)):
        yield Quantize(40, 256, group, element), 1, 2
        for bits, zeros, up in combinations((4, 8), (None, 8), (False, True)):
            gate = None if not up else (11, 12) if zeros is None else (11, 12, 13)
            yield MatMul(6, 7, 40, 256, 256, group, element, gate, bits, zeros), 2, 1
        for tables, scales in (((6,), (7,)), ((6, 8), (7, 9))):
            yield Lookup(tables, 256, element, 4, size=32), 1, 1
            yield Lookup(tables, 256, element, 4, scales, group, 32, Factor(5), element == "f16"), 1, 1
            yield Lookup(tables, 256, element, 4, size=32, factor=Factor(5, divides=True)), 1, 1
            yield Lookup(tables, 256, element, 1, size=32, wide=element == "f16"), 1, 1
        yield Lookup((6,), 256, element, 1, (7,), group, signed=True), 1, 1
    for element, rows in combinations(("f32", "f16"), (1, 4)):
        yield Attention(8, 8, head, 300, 0.25, 0, 0, 23, 24, element, prepared=True, whole=True, rows=rows), 3, 1
        yield PositionRow(6, 256, element, rows, along=rows > 1), 1, 1
        attention = Attention(8, 2, head, 300, 0.25, 21, 22, 23, 24, element)
        product = MatVec(6, 7, 96, 8 * head, 32, element, residual=True)
        yield AttendedProduct(attention, product, 1), 2, 2


def states() -> Iterator[tuple[Operation, int, int]]:
    for element, positions in combinations(("f32", "f16"), (1, 4)):
        for gated, bias in ((True, None), (False, 5)):
            yield Convolution(100, 4, 6, bias, 21, 22, element, gated, not gated, positions), 2, 2
        for factor, state in ((None, "f32"), (7, element)):
            about = (2, 4, 64, 96, 0.125, 1e-6, 5, 6, factor, 21, 22, element, state)
            yield DeltaRule(*about, positions=positions), 4, 2
            yield DeltaRule(*about, turns=True, paired=True, positions=positions), 3, 2
        paired = DeltaRule(2, 4, 64, 96, 0.125, 1e-6, 5, 6, 7, 21, 22, element, element, paired=True)
        norm = GatedHeadNorm(4, 96, 5, 1e-6, element)
        if positions == 1:
            yield NormedDeltaRule(paired, norm), 4, 3
        yield MatVec(6, None, 16, 128, 0, element, up=(7, None), paired=True, of=32, rows=positions), 1, 1
        yield GatedHeadNorm(4, 96, 5, 1e-6, element, positions), 2, 1
        yield HeadGate(4, 96, 1000, element, positions), 2, 1


def texts(operations: Iterator[tuple[Operation, int, int]], limits: WorkgroupLimits) -> Iterator[dict[str, Any]]:
    """The request to the page for each kernel that computes one of the operations, or its truth."""
    for what, reads, writes in operations:
        of, to = range(1, 1 + reads), range(31, 31 + writes)
        for kernel in what.kernels(of, to, limits):
            constants = dict(kernel.plan.constants)
            floats = [name for name, value in constants.items() if isinstance(value, float)]
            text = {"shader": kernel.plan.shader, "constants": constants, "floats": floats}
            yield text_of({**text, "half": kernel.half, "lanes": limits.lanes, "bindings": kernel.bindings})
        if limits == LIMITS[0]:
            witness = Witness("truths", (0, 0, 32), 20, 300)
            what.truth(witness, of, to)
            yield from (text_of(kernel) for kernel in witness.kernels)


def text_of(kernel: Mapping[str, Any]) -> dict[str, Any]:
    bindings = dict.fromkeys(kernel["bindings"])
    return {**{name: kernel[name] for name in ("shader", "constants", "floats", "half", "lanes")}, "bindings": bindings}


def templates() -> set[str]:
    """Names of those of the kernels of tapes."""
    texts = {
        path.stem: path.read_text()
        for room in ("products", "attention", "states", "truth")
        for path in (SHADERS / room).iterdir()
    }
    whole = {name for name, text in texts.items() if "fn main(" in text and "@group(" not in text}
    return whole - {"attention_subgroups", "attention_workgroup"} | {"attention"}


def refused(modules: Mapping[str, str]) -> list[str]:
    """Names and reasons."""
    naga = Naga.opened()
    reasons = {name: naga.refusal(code) for name, code in modules.items()}
    return [f"{name}: {reason}" for name, reason in reasons.items() if reason is not None]


PARTS = [f"{part}{of}" for part in ("scales", "zeros", "minima") for of in ("", "_up")]
ONE_WAY = [
    *(f"attention_append {name}" for name in ("APPENDED", "SEVERAL", "WHOLE", "table")),  # its only use
    *(f"{shader} {name}" for shader in ("few_rows_dense", "matvec_dense") for name in ("weights", "up", *PARTS)),
    *(f"{shader} {name}" for shader in ("few_rows_q4", "matmul_q4", "matvec_q4") for name in ("weights", "scales")),
    *(f"matmul_q4 {name}" for name in ("bias", "residual", "minima", "minima_up")),  # no plan asks for them yet
    "gather_rows BYTES",  # onnxruntime-web gathers the rows of tables of 8 bits
    *(f"truth_gemv {name}_up" for name in ("weights", "scales", "zeros", "minima")),  # each product is one of its own
    *("judge HALF", "judge SUBGROUPS", "rows HALF", "rows SUBGROUPS", "truth_attention SUBGROUPS"),
    *(f"truth_{name} SUBGROUPS" for name in ("convolution", "delta_rule", "gemv", "head")),
    # These texts have no caches of fewer bits and of a window.
    *(f"attention_append {name}" for name in ("FOUR_BITS", "PREPARED", "QUANTIZED", "WRITTEN")),
    *("judge FOUR_BITS", "judge QUANTIZED", "judge SLIDING", "rows SLIDING"),
    "truth_attention SLIDING",
]
"""Conditions of templates that no plan asks for both ways."""


def asked_for(numbered: Iterable[tuple[int, WorkgroupLimits]]) -> list[dict[str, Any]]:
    """The texts of all operations under these limits; a limit's number decides what chance leaves open."""
    rows = [cache_rows([CacheRows(1, 2, 64, 300)], filled, 0, (0, 0, 32), "rows") for filled in (0, 5)]
    asked = [text_of(kernel) for witness in rows for kernel in witness.kernels]
    for seed, limits in numbered:
        asked += texts(products(seed), limits)
        asked += texts(others((64, 128)[seed % 2]), limits)
        asked += texts(states(), limits)
    return asked


def modules_of(asked: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """WGSL modules by request. naga gets the texts that FusedPipelines makes for a compiler without f16 bitcasts."""
    made = {answered({**text, "bitcasts": not text["half"]})["code"]: str(text) for text in asked}
    return {text: code for code, text in made.items()}


def test_fused_kernels_are_taken() -> None:
    """Those of a few kinds of adapters; the extended test has all."""
    modules = modules_of(asked_for(list(enumerate(LIMITS))[::4])[::2])
    assert len(modules) > 200
    assert refused(modules) == []


@pytest.mark.extended
def test_every_fused_kernel_is_taken_in_every_form() -> None:
    asked = asked_for(enumerate(LIMITS))
    modules = modules_of(asked)
    print(f"{len(modules)} modules")
    assert refused(modules) == []
    seen: defaultdict[tuple[str, str], set[bool]] = defaultdict(set)
    for text in asked:
        flags = {**text["constants"], "HALF": text["half"], "SUBGROUPS": text["lanes"] > 0}
        flags |= {name: name in text["bindings"] for name in answered(text)["optional"]}
        for name, value in flags.items():
            if isinstance(value, bool):
                seen[text["shader"], name].add(value)
    assert sorted(f"{shader} {name}" for (shader, name), values in seen.items() if len(values) < 2) == sorted(ONE_WAY)
    left_out = {"few_rows_matrices", "matmul_matrices", "moved", "prefill_attention"}
    assert {shader for shader, _ in seen} == templates() - left_out


SAMPLED = SearchOptions(max_length=1000, do_sample=True, top_k=50, top_p=0.9, temperature=1.3, min_p=0.05)


@pytest.mark.parametrize(
    "options",
    [
        SAMPLED.replace(do_sample=False),
        SAMPLED,
        SAMPLED.replace(repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.25, no_repeat_ngram_size=3),
        SAMPLED.replace(do_sample=False, min_length=9, bad_words_ids=((1, 2),), stop_token_ids=(5,)),
        replace(SAMPLED, timestamps=TimestampTokens(3, 900, 890, (1, 2), (890,), 50)),
    ],
    ids=["greedy", "drawn", "penalties", "bans", "timestamps"],
)
@pytest.mark.parametrize("drafts", [0, 4])
def test_every_kernel_of_the_sampler_is_taken(options: SearchOptions, drafts: int) -> None:
    program = options.sampler_program(1000, 300, drafting=Drafting(drafts, 3))
    sent = {"passes": program.passes, "wgsl": program.wgsl, "banWgsl": program.ban_wgsl, "drafts": drafts}
    codes = answered({"sampler": {**sent, "maskWgsl": program.mask_wgsl, "endWgsl": program.end_wgsl}})["codes"]
    assert len(codes) >= 2
    assert refused({f"module {i}": code for i, code in enumerate(codes)}) == []


ALONE = (
    *(("memory/turn",), ("memory/beside",), ("memory/half", "memory/narrow")),
    ("memory/half", "memory/unpack"),
    *(("truth/compare",), ("sampler/keys", "sampler/shortlist")),
)
"""Modules that are files, or several one behind the other."""


def test_every_other_kernel_is_taken() -> None:
    spans: Sequence[str] = answered({"spans": ["bytes", "cast", "mask", "positions"]})["codes"]
    assert len(spans) == 4
    files = {" ".join(names): "".join((SHADERS / f"{name}.wgsl").read_text() for name in names) for names in ALONE}
    assert refused({**files, **{f"spans {i}": code for i, code in enumerate(spans)}}) == []


def test_naga_refuses_what_is_wrong() -> None:
    naga = Naga.opened()
    assert naga.refusal("@compute @workgroup_size(64) fn main() { let x = subgroupAdd(1.0); }") is None
    assert "unknown identifier" in str(naga.refusal("@compute @workgroup_size(64) fn main() { let x = y; }"))
    bits = "enable f16; fn f(word: u32) -> vec2<f16> { return bitcast<vec2<f16>>(word); }"
    assert naga.refusal(bits), "naga has these bitcasts now: expanded() needs no other functions for it"
