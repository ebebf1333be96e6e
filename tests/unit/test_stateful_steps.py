"""Kernels around states become Capstan's operations only if nothing else needs what these do not make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from capstan.tape import PASSES, Recorded
from capstan.tape.ops.attention import Attention
from capstan.tape.ops.convolution import Convolution
from capstan.tape.ops.delta_rule import DeltaRule, GatedHeadNorm
from capstan.tape.ops.head_gate import HeadGate
from capstan.tape.placement import Placement
from capstan.tape.step_graph import StepGraph
from tests.unit.recorded_kernels import Number
from tests.unit.small_decoders import BLOCK, HEAD, HEADS, KV_HEADS, VOCABULARY, WIDTH, Small, decoder
from tests.unit.stateful_decoders import STATEFUL_DECODERS, Stateful
from tests.unit.test_fusions import check, made_of
from tests.unit.test_step_graph import EVERY, read

STATES = (*EVERY, "states")


def made(small: Small, name: str, graph: StepGraph | Placement) -> Any:
    """The operation that does the work of the sketch's operation of this name."""
    [node] = [node for node in graph.nodes if small.calls[name] in node.origins]
    return node.what


def as_recorded(small: Small, *names: str, graph: StepGraph | Placement) -> list[bool]:
    return [isinstance(made(small, name, graph), Recorded) for name in names]


def homes_of(placement: Placement, values: Sequence[int]) -> list[int | None]:
    """The recorded buffers of values."""
    return [placement.homes.get(value) for value in values]


def changed(small: Small, name: str, **uniforms: Number) -> None:
    call = small.sketch.calls[small.calls[name]]
    assert uniforms.keys() <= call.uniforms.keys()
    call.uniforms = {**call.uniforms, **uniforms}


def seen(small: Small, name: str, output: int = 0) -> None:
    """Let an operation that nobody recognises read what the one of this name writes."""
    s = small.sketch
    tensor = [*s.calls[small.calls[name]].writes.values()][output]
    s.unknown(lambda v: v[:4], [tensor], 4, into=s.lasting(4))


def test_a_convolution_and_its_gates_are_one_operation() -> None:
    small = STATEFUL_DECODERS["lfm2"]()
    step = small.sketch.record(recycle=False)
    placement = check(small, step, PASSES)
    assert made_of(placement) == {"recorded": 1, "product norm": 2, "convolution": 1, "product residual": 1}
    [node] = [node for node in placement.nodes if isinstance(node.what, Convolution)]
    first, last = small.calls["split"], small.calls["results"]
    assert node.origins == {*range(first, last + 1), small.calls["copy of convolution"]}
    what = made(small, "convolution", placement)
    assert (what.channels, what.taps, what.gated, what.silu, what.bias) == (WIDTH, 4, True, False, None)
    past, present = (step.buffer_of[tensor] for tensor in small.states["convolution"])
    assert (what.past, what.present, what.in_place) == (past, present, {past})
    assert homes_of(placement, node.writes)[1] == past


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5, q as it is"])
def test_linear_attention_is_one_operation_and_the_norm_of_its_heads_another(name: str) -> None:
    small = STATEFUL_DECODERS[name]()
    step = small.sketch.record(recycle=False)
    placement = check(small, step, PASSES)
    assert made_of(placement) == {
        "recorded": 1,
        "product norm": 5,
        "convolution": 1,
        "deltarule": 1,
        "gatedheadnorm": 1,
        "product residual": 1,
    }
    convolution, rule = made(small, "convolution", placement), made(small, "recurrence", placement)
    assert (convolution.silu, convolution.gated, convolution.bias is not None) == (True, False, True)
    assert rule == made(small, "split", placement) == made(small, "rate of the decay", placement)
    assert (rule.key_heads, rule.heads, rule.key, rule.value, rule.scale) == (2, 4, 8, 8, 0.5)
    assert rule.epsilon == pytest.approx(1e-3)
    assert (rule.factor is None) == (name != "qwen3_5")
    assert made(small, "norm of the result", placement) == made(small, "gate", placement)
    assert made(small, "gate", placement).epsilon == 0.5


@pytest.mark.parametrize(
    ("reader_of", "output", "gated"),
    [
        ("split", 0, False),
        ("split", 1, False),
        ("inputs", 0, False),
        ("turned inputs", 0, None),
        ("convolution", 0, False),
        ("convolution", 1, None),
        ("turned results", 0, False),
        ("results", 0, True),
    ],
)
def test_what_is_read_elsewhere_stays_in_front_of_a_convolution_or_behind(
    reader_of: str, output: int, gated: bool | None
) -> None:
    """`gated` is None where the convolution stays as recorded, too."""
    small = STATEFUL_DECODERS["lfm2"]()
    seen(small, reader_of, output)
    placement = check(small, small.sketch.record(recycle=False), PASSES)
    what = made(small, "convolution", placement)
    assert getattr(what, "gated", None) == gated
    assert as_recorded(small, "split", "results", graph=placement) == [not gated] * 2


def gate_of_another(small: Stateful) -> None:
    """The second factor of the results is no part of the vector that is split."""
    small.sketch.calls[small.calls["results"]].reads["input_a"] = small.cos


def parts_in_another_order(small: Stateful) -> None:
    calls, at = small.sketch.calls, small.calls
    split = [*calls[at["split"]].writes.values()]
    calls[at["inputs"]].reads = {"input_a": split[0], "input_b": split[1]}
    calls[at["results"]].reads["input_a"] = split[2]


@pytest.mark.parametrize("change", [gate_of_another, parts_in_another_order])
def test_other_gates_are_not_those_of_a_convolution(change: Any) -> None:
    small = STATEFUL_DECODERS["lfm2"]()
    change(small)
    placement = check(small, small.sketch.record(recycle=False), PASSES)
    assert made(small, "convolution", placement).gated is False


def test_segments_of_other_sizes_are_not_the_gates_of_a_convolution() -> None:
    small = STATEFUL_DECODERS["lfm2"]()
    changed(small, "split", segment_sizes=(WIDTH // 4, WIDTH // 2, 0))
    assert made(small, "convolution", read(small.sketch.record(recycle=False), STATES)).gated is False


@pytest.mark.parametrize(
    ("name", "uniforms", "stays"),
    [
        ("turned inputs", {"a_shape": (1, 2, 32)}, "convolution"),
        ("turned q", {"a_shape": (1, 2, 8)}, "recurrence"),
        ("turned v", {"a_shape": (2, 16, 1)}, "recurrence"),
        ("norm of k", {"epsilon": 1e-5}, "recurrence"),
        ("norm of k", {"norm_count": 1, "norm_size": 16}, "recurrence"),
        ("norm of q", {"norm_count": 1, "norm_size": 16}, "recurrence"),
        ("split", {"segment_sizes": (8, 4, 4)}, "recurrence"),
        ("recurrence", {"q_num_heads": 4, "n_k_heads": 4, "kv_per_k_head": 1}, "recurrence"),
        ("recurrence", {"head_dim_k": 16}, "recurrence"),
        ("norm of the result", {"norm_count": 2, "norm_size": 8}, "norm of the result"),
    ],
)
def test_other_shapes_stay_as_recorded(name: str, uniforms: dict[str, Number], stays: str) -> None:
    small = STATEFUL_DECODERS["qwen3_5"]()
    changed(small, name, **uniforms)
    graph = read(small.sketch.record(recycle=False), STATES)
    kinds = {"convolution": Convolution, "recurrence": DeltaRule, "norm of the result": GatedHeadNorm}
    assert {each for each, kind in kinds.items() if not isinstance(made(small, each, graph), kind)} == {stays}


BETWEEN = (
    *(("split", output) for output in range(3)),
    *((f"turned {name}", 0) for name in "qkv"),
    *((f"norm of {name}", 0) for name in "qk"),
    *((name, 0) for name in ("beta", "bias of the decay", "rate of the decay")),
    ("recurrence", 1),
)


@pytest.mark.parametrize(("name", "output"), BETWEEN)
def test_linear_attention_of_which_something_is_read_elsewhere(name: str, output: int) -> None:
    small = STATEFUL_DECODERS["qwen3_5"]()
    seen(small, name, output)
    placement = check(small, small.sketch.record(recycle=False), PASSES)
    assert made_of(placement)["deltarule"] == 0
    assert as_recorded(small, "split", "recurrence", graph=placement) == [True, True]
    assert isinstance(made(small, "norm of the result", placement), GatedHeadNorm)


@pytest.mark.parametrize("name", ["recurrence", "norm of the result", "gate"])
def test_a_norm_of_heads_of_which_something_is_read_elsewhere(name: str) -> None:
    small = STATEFUL_DECODERS["qwen3_5"]()
    seen(small, name)
    placement = check(small, small.sketch.record(recycle=False), PASSES)
    assert isinstance(made(small, "recurrence", placement), DeltaRule)
    assert as_recorded(small, "norm of the result", "gated", graph=placement) == [True, True]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("name", "weights", "stays"),
    [
        ("bias of the decay", "input_b", "recurrence"),
        ("rate of the decay", "input_b", "recurrence"),
        ("norm of k", "scale", "recurrence"),
        ("norm of the result", "scale", "norm of the result"),
        ("convolution", "weight", "convolution"),
        ("convolution", "bias", "convolution"),
    ],
)
def test_weights_that_the_step_writes_are_not_taken_for_constant(
    name: str, weights: str, stays: str, before: bool
) -> None:
    small = STATEFUL_DECODERS["qwen3_5"]()
    s = small.sketch
    tensor = s.calls[small.calls[name]].reads[weights]
    s.unknown(lambda v: v[:4] / 2, [small.cos], 4, into=tensor)
    if before:
        s.calls.insert(1, s.calls.pop())
        small.calls = {each: index + 1 for each, index in small.calls.items()}
    graph = read(s.record(recycle=False), STATES)
    kinds = {"convolution": Convolution, "recurrence": DeltaRule, "norm of the result": GatedHeadNorm}
    assert {each for each, kind in kinds.items() if not isinstance(made(small, each, graph), kind)} == {stays}


@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("name", ["convolution", "recurrence"])
def test_a_state_that_is_copied_elsewhere_is_not_in_place(name: str, lasting: bool) -> None:
    small = STATEFUL_DECODERS["qwen3_5"]()
    s = small.sketch
    copy = s.calls[small.calls[f"copy of {name}"]]
    size = s.sizes[small.states[name][0]]
    copy.writes["target"] = target = s.lasting(size) if lasting else s.tensor(size)
    s.unknown(lambda v: v[:4], [target], 4, into=s.lasting(4))
    placement = check(small, small.sketch.record(recycle=False), PASSES)
    assert as_recorded(small, name, graph=placement) == [True]


@pytest.mark.parametrize(
    "name", ["split", "turned v", "norm of q", "recurrence", "copy of recurrence", "beta", "rate of the decay"]
)
def test_one_operation_kept_keeps_its_linear_attention(name: str) -> None:
    small = STATEFUL_DECODERS["qwen3_5"]()
    graph = read(small.sketch.record(recycle=False), STATES, {small.calls[name]})
    # A copy is replayed as it was recorded where its operation is, and is none of those that can be kept.
    assert as_recorded(small, "recurrence", graph=graph) == [name != "copy of recurrence"]


class TestGatedAttention:
    def test_is_attention_and_a_gate(self) -> None:
        small = decoder(norms="apart", rotary="partial", gates=True)
        step = small.sketch.record(recycle=False)
        placement = check(small, step, PASSES)
        found = made_of(placement)
        assert (found["attention"], found["headgate"], found["recorded"]) == (2, 2, 1)
        what, gate = made(small, "split 1", placement), made(small, "gate 1", placement)
        assert isinstance(what, Attention)
        assert (what.gated, what.rotary, what.head) == (True, HEAD // 2, HEAD)
        assert what == made(small, "split of q 1", placement)
        assert gate == made(small, "sigmoid 1", placement) == HeadGate(HEADS, HEAD, 12 * HEAD, "f32")
        assert 2 * HEADS + 2 * KV_HEADS == 12
        [node] = [node for node in placement.nodes if node.what == gate and small.calls["gate 1"] in node.origins]
        assert homes_of(placement, node.reads[1:]) == [
            step.buffer_of[small.sketch.calls[small.calls["qkv 1"]].writes["output"]]
        ]

    @pytest.mark.parametrize(
        ("name", "output"), [("split of q 1", 0), ("split of q 1", 1), ("sigmoid 1", 0), ("join 1", 0)]
    )
    def test_stays_as_recorded_if_something_else_reads_a_part(self, name: str, output: int) -> None:
        small = decoder(norms="apart", rotary="partial", gates=True)
        seen(small, name, output)
        placement = check(small, small.sketch.record(recycle=False), PASSES)
        assert as_recorded(small, "split 1", "gate 1", graph=placement) == [True, True]
        assert isinstance(made(small, "gate 0", placement), HeadGate)

    def test_stays_as_recorded_if_the_gate_goes_elsewhere(self) -> None:
        small = decoder(norms="apart", rotary="partial", gates=True)
        s = small.sketch
        call = s.calls[small.calls["gate 1"]]
        opened, call.reads["input_b"] = call.reads["input_b"], s.weights(HEADS * HEAD)
        product = small.multiply(opened, small.table, HEADS * HEAD)
        s.unknown(lambda v: v[:4], [product], 4, into=s.lasting(4))
        placement = check(small, s.record(recycle=False), PASSES)
        assert as_recorded(small, "split 1", "gate 1", graph=placement) == [True, True]

    @pytest.mark.parametrize(
        ("name", "uniforms"),
        [
            ("split of q 1", {"segment_sizes": (2, 6)}),
            ("split of q 1", {"input_size": 16}),
            ("split of qkv 1", {"segment_sizes": (16, 8, 24)}),
        ],
    )
    def test_stays_as_recorded_if_the_parts_are_of_other_sizes(self, name: str, uniforms: dict[str, Number]) -> None:
        small = decoder(norms="apart", rotary="partial", gates=True)
        changed(small, name, **uniforms)
        graph = read(small.sketch.record(recycle=False), STATES)
        assert as_recorded(small, "split 1", graph=graph) == [True]
        assert isinstance(made(small, "gate 0", graph), HeadGate)


@pytest.mark.parametrize("block", [BLOCK, 48])
def test_three_products_of_one_kernel(block: int) -> None:
    small = Small()
    s = small.sketch
    sizes = {"q": VOCABULARY, "k": WIDTH, "v": WIDTH}
    reads = {"input_a": small.embedded()}
    for name, n in sizes.items():
        reads |= {f"{name}_b": s.weights(n * WIDTH), f"{name}_scales_b": s.weights(n * WIDTH // BLOCK, 1.0)}
    uniforms = {"Nq": VOCABULARY, "Nkv": WIDTH, "K": WIDTH, "block_size": block, "batch_count": 1, "skip_size": 0}
    outputs = {f"{name}_output": WIDTH for name in "kv"}
    _, k, v = s.run("three_products", reads, outputs, uniforms, into={"q_output": small.logits})
    small.named("products")
    s.unknown(lambda a, b: a[:WIDTH] * b[:WIDTH], [k, v], WIDTH, into=s.lasting(WIDTH))
    step = s.record(recycle=False)
    if block == BLOCK:
        assert made_of(check(small, step, PASSES)) == {"recorded": 2, "product": 3}
    else:
        assert as_recorded(small, "products", graph=read(step, STATES)) == [True]
