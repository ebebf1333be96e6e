"""A recorded step as a graph: each content of a buffer is a value, recognised kernels are what they compute."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from capstan.tape import BindGroup, Command, Copy, Dispatch, DispatchIndirect, MatVec, Pipeline, Recorded, Recording
from capstan.tape.ops import RULES
from capstan.tape.ops.attention import Attention
from capstan.tape.ops.gemv import fits_matvec
from capstan.tape.ort_kernels import read_step
from capstan.tape.step_graph import StepGraph
from tests.unit import step_simulator
from tests.unit.recorded_kernels import KERNELS
from tests.unit.small_decoders import BLOCK, HEAD, HEADS, VOCABULARY, WIDTH, Small, decoder

SIZE = 64
EVERY = ("matvec", "gated", "norm", "residual", "attention")


def plain(*bound: tuple[tuple[int, ...], tuple[int, ...]], between: dict[int, Command] | None = None) -> StepGraph:
    """The graph of dispatches that nobody recognises, of which each reads and writes the given buffers; `between` has
    other operations by index. Buffer 9 outlives the step."""
    ops: list[Command] = []
    groups: dict[int, BindGroup] = {}
    pipelines: dict[int, Pipeline] = {}
    for i, (reads, writes) in enumerate(bound):
        while between and len(ops) in between:
            ops.append(between[len(ops)])
        access = {(0, b): "read" if b < len(reads) else "read_write" for b in range(len(reads) + len(writes))}
        pipelines[i] = Pipeline("", access)
        groups[100 + i] = BindGroup(tuple((b, buffer, 0, SIZE) for b, buffer in enumerate((*reads, *writes))))
        ops.append(Dispatch(i, (100 + i,), 1, 1, 1))
    while between and len(ops) in between:
        ops.append(between[len(ops)])
    recording = Recording(7, tuple(ops), pipelines, groups, dict.fromkeys(range(20), SIZE))
    return read_step(recording, ops, {9}, EVERY, (), RULES)[0]


def homes(graph: StepGraph, values: Collection[int]) -> list[int]:
    return [graph.homes[value] for value in values]


class TestValues:
    def test_a_buffer_that_outlives_the_step_and_is_only_read_must_stay(self) -> None:
        graph = plain(((9,), (2,)))
        assert graph.last == {9: graph.first[9]}

    def test_a_kernel_may_change_a_part_of_what_nobody_has_read(self) -> None:
        graph = plain(((1,), (2,)), ((3,), (2,)), ((2,), (9,)))
        assert graph.nodes[1].reads == (graph.nodes[0].writes[0], graph.first[3])

    def test_a_whole_copy_leaves_nothing_of_what_was_there(self) -> None:
        graph = plain(((1,), (2,)), ((2,), (9,)), between={1: Copy(1, 0, 2, 0, SIZE)})
        assert homes(graph, graph.nodes[1].reads) == [1]
        assert graph.nodes[1].writes[0] in graph.nodes[2].reads

    @pytest.mark.parametrize("copy", [Copy(1, 0, 2, 0, SIZE - 4), Copy(1, 0, 2, 4, SIZE - 4)])
    def test_a_part_copy_leaves_the_rest(self, copy: Copy) -> None:
        graph = plain(((1,), (2,)), ((2,), (9,)), between={1: copy})
        assert set(graph.nodes[0].writes) < set(graph.nodes[1].reads)

    @pytest.mark.parametrize("copy", [Copy(1, 0, 2, 0, SIZE - 4), Copy(1, 0, 2, 4, SIZE - 4)])
    def test_a_part_copy_leaves_the_rest_of_what_was_read_before_too(self, copy: Copy) -> None:
        graph = plain(((1,), (2,)), ((2,), (3,)), ((2,), (9,)), between={2: copy})
        assert set(graph.nodes[0].writes) < set(graph.nodes[2].reads)

    def test_counts_of_an_indirect_dispatch_are_read(self) -> None:
        recording = Recording(
            7, (), {0: Pipeline("", {(0, 0): "read_write"})}, {100: BindGroup(((0, 2, 0, 0),))}, {2: SIZE, 5: SIZE}
        )
        ops = [DispatchIndirect(0, (100,), 5, 0)]
        graph = read_step(recording, ops, (), EVERY, (), RULES)[0]
        assert homes(graph, graph.nodes[0].reads) == [5]


def read(step: step_simulator.Recorded, lift: Collection[str], kept: Collection[int] = ()) -> StepGraph:
    return read_step(step.recording, step.ops, step.lasting, lift, kept, RULES)[0]


def kinds(graph: StepGraph, index: int) -> list[type]:
    """The kinds of the nodes that contain an operation of the step."""
    return [type(node.what) for node in graph.nodes if index in node.origins]


class TestWhatKernelsCompute:
    def test_one_operation_kept_keeps_its_attention(self) -> None:
        small = decoder()
        step = small.sketch.record(recycle=False)
        for name in ("rotary 0", "split 0", "join 0"):
            graph = read(step, EVERY, {small.calls[name]})
            assert [kinds(graph, small.calls[f"{part} 0"]) for part in ("rotary", "split", "join")] == [[Recorded]] * 3
            assert kinds(graph, small.calls["join 1"]) == [Attention]

    @pytest.mark.parametrize("norms", ["inside", "apart", "all", "no"])
    def test_attention_of_q_k_and_v_that_were_split(self, norms: str) -> None:
        small = decoder(norms=norms)
        step = small.sketch.record(recycle=False)
        graph = read(step, EVERY)
        [node] = [node for node in graph.nodes if small.calls["join 1"] in node.origins]
        # The operation before the rotary kernel, or before the norms, splits what the product makes.
        first = small.calls["rotary 1"] - {"apart": 3, "all": 4}.get(norms, 1)
        assert first == small.calls["qkv 1"] + 1
        assert node.origins == set(range(first, small.calls["join 1"] + 1))
        what = node.what
        assert isinstance(what, Attention)
        assert (what.heads, what.kv_heads, what.head, what.capacity) == (HEADS, 2, HEAD, 160)
        assert [what.key, what.value] == [step.buffer_of[cache] for cache in small.caches[2:]]
        packed = small.sketch.calls[small.calls["qkv 1"]].writes["output"]
        assert homes(graph, node.reads[:1]) == [step.buffer_of[packed]]
        if norms == "no":
            assert what.norms is None
            return
        names = {"inside": ("rotary 1", "q_norm_weight", "k_norm_weight")}.get(norms)
        if names:
            reads = small.sketch.calls[small.calls[names[0]]].reads
            gammas = [reads[name] for name in names[1:]]
        else:
            named = "qkv" if norms == "all" else "qk"
            gammas = [small.sketch.calls[small.calls[f"norm of {x} 1"]].reads["scale"] for x in named]
        assert what.norms is not None
        assert list(what.norms.gammas.values()) == [step.buffer_of[gamma] for gamma in gammas]
        assert what.norms.epsilon == pytest.approx(1e-5)

    def test_norms_of_a_single_key_head_are_no_norms_of_a_layer(self) -> None:
        small = decoder(norms="all")
        wide = 2 * HEAD
        sizes: dict[str, dict[str, int | tuple[int, ...]]] = {
            "norm of q": {"norm_count": 2, "norm_size": wide},
            "norm of k": {"norm_count": 1, "norm_size": wide},
            "norm of v": {"norm_count": 1, "norm_size": wide},
            "rotary": {
                "cos_cache_shape": (160, HEAD),
                "q_global_shape": (1, 1, 2, HEAD),
                "k_global_shape": (1, 1, 1, HEAD),
                "head_size": wide,
            },
            "cache": {"key_shape": (1, 1, 1, wide // 4), "present_key_shape": (1, 1, 160, wide // 4)},
        }
        for name, uniforms in sizes.items():
            call = small.sketch.calls[small.calls[f"{name} 1"]]
            call.uniforms = {**call.uniforms, **uniforms}
        graph = read(small.sketch.record(recycle=False), EVERY)
        [node] = [node for node in graph.nodes if small.calls["join 1"] in node.origins]
        assert isinstance(node.what, Attention)
        assert (node.what.heads, node.what.kv_heads, node.what.head) == (2, 1, wide)
        assert node.what.norms is not None
        assert node.what.norms.v_gamma is not None

    @pytest.mark.parametrize("of", ["q", "k", "v"])
    def test_norms_that_differ_keep_their_attention(self, of: str) -> None:
        small = decoder(norms="all")
        call = small.sketch.calls[small.calls[f"norm of {of} 0"]]
        call.uniforms = {**call.uniforms, "epsilon": 0.5}
        graph = read(small.sketch.record(recycle=False), EVERY)
        assert kinds(graph, small.calls["join 0"]) == [Recorded]
        assert kinds(graph, small.calls["join 1"]) == [Attention]

    @pytest.mark.parametrize(
        "kept", ["norm of q 0", "norm of k 0", "norm of v 0", "rotary 0", "cache 0", "split 0", "join 0"]
    )
    def test_one_operation_kept_keeps_its_attention_with_norms(self, kept: str) -> None:
        small = decoder(norms="all")
        step = small.sketch.record(recycle=False)
        graph = read(step, EVERY, {small.calls[kept]})
        assert kinds(graph, small.calls["join 0"]) == [Recorded]
        assert kinds(graph, small.calls["join 1"]) == [Attention]

    @pytest.mark.parametrize("norms", ["inside", "apart", "all", "no"])
    @pytest.mark.parametrize("of", ["rotary 0", "cache 0"])
    def test_what_is_read_elsewhere_keeps_its_attention(self, norms: str, of: str) -> None:
        small = decoder(norms=norms)
        s = small.sketch
        call = s.calls[small.calls[of]]
        # An unknown kernel at the end reads what our attention would not make.
        tensor = call.reads["q_input" if of == "rotary 0" else "value"]
        s.unknown(lambda v: v[:4], [tensor], 4, into=s.lasting(4))
        graph = read(s.record(recycle=False), EVERY)
        assert kinds(graph, small.calls["join 0"]) == [Recorded]
        assert kinds(graph, small.calls["join 1"]) == [Attention]


class TestShapes:
    @pytest.mark.parametrize(
        ("k", "block", "bits", "fits"),
        [
            (64, 32, 4, True),
            (64, 64, 8, True),
            (96, 32, 4, True),
            (64, 16, 4, True),
            (48, 16, 4, False),
            (96, 64, 4, True),
            (16, 16, 8, False),
            (96, 48, 4, False),
            (200, 64, 4, True),
            (80, 32, 8, True),
            (80, 16, 4, False),
            (100, 32, 4, False),
            (64, 32, 2, False),
        ],
    )
    def test_products_are_of_whole_runs_and_of_blocks_of_runs_or_halves(
        self, k: int, block: int, bits: int, fits: bool
    ) -> None:
        assert fits_matvec(MatVec(1, 2, 64, k, block, "f32", bits=bits)) is fits

    @pytest.mark.parametrize(
        ("form", "blocks", "expected"),
        [("_zeros", 2, MatVec), ("_zeros", 1, Recorded), ("_bytes_zeros", 1, MatVec), ("_bytes_zeros", 2, Recorded)],
    )
    def test_rows_of_zero_points_are_whole_bytes(self, form: str, blocks: int, expected: type) -> None:
        small = Small(packed=form)
        small.matmul(small.embedded(), VOCABULARY, WIDTH, into=small.logits)
        call = small.sketch.calls[-1]
        assert WIDTH == BLOCK, "a row is one block"
        call.uniforms = {**call.uniforms, "zero_blocks_per_col": blocks}
        assert kinds(read(small.sketch.record(recycle=False), EVERY), 1) == [expected]

    @pytest.mark.parametrize(
        ("k", "n", "element", "fits"),
        [
            (64, 4, "f32", True),
            (64, 8, "f16", True),
            (64, 4, "f16", False),
            (64, 12, "f16", False),
            (64, 6, "f32", False),
            (66, 8, "f32", False),
            (66, 8, "f16", False),
        ],
    )
    def test_dense_products_are_of_whole_vectors(self, k: int, n: int, element: str, fits: bool) -> None:
        assert fits_matvec(MatVec(1, None, n, k, 0, element)) is fits

    def test_dense_products_of_other_shapes_stay_as_recorded(self) -> None:
        small = Small(dense=True)
        # As large as the kernel of float32 covers, and not that of float16.
        small.matmul(small.embedded(), 36, WIDTH)
        for element, expected in (("<f32>", MatVec), ("<f16>", Recorded)):
            step = small.sketch.record(recycle=False)
            pipelines = {
                id_: replace(made, code=made.code.replace("<f32>", element))
                for id_, made in step.recording.pipelines.items()
            }
            graph = read(replace(step, recording=replace(step.recording, pipelines=pipelines)), EVERY)
            assert kinds(graph, 1) == [expected]

    @pytest.mark.parametrize("gated", [False, True])
    def test_others_stay_as_recorded(self, gated: bool) -> None:
        small = decoder()
        s = small.sketch
        index = small.calls["gated 0" if gated else "qkv 0"]
        call = s.calls[index]
        call.uniforms = {**call.uniforms, "block_size": 48}
        assert kinds(read(s.record(recycle=False), EVERY), index) == [Recorded]

    def test_heads_that_the_kernel_does_not_cover_stay_as_recorded(self) -> None:
        small = decoder()
        s = small.sketch
        call = s.calls[small.calls["rotary 0"]]
        call.uniforms = {**call.uniforms, "head_size": 3 * 4, "half_rotary_dim": 3 * 2, "kv_num_heads": 3}
        assert kinds(read(s.record(recycle=False), EVERY), small.calls["rotary 0"]) == [Recorded]


def test_a_split_over_other_caches_is_another_attention() -> None:
    small = decoder()
    s = small.sketch
    s.calls[small.calls["split 1"]].reads["present_key"] = small.caches[0]
    graph = read(s.record(recycle=False), EVERY)
    assert kinds(graph, small.calls["split 1"]) == [Recorded]
    assert kinds(graph, small.calls["split 0"]) == [Attention]


def test_weights_that_the_step_writes_are_not_taken_for_constant() -> None:
    small = Small()
    s = small.sketch
    y = small.norm(small.embedded())
    gamma = s.calls[-1].reads["scale"]
    s.unknown(lambda v: v[:WIDTH], [small.cos], WIDTH, into=gamma)
    small.matmul(y, VOCABULARY, WIDTH, into=small.logits)
    assert kinds(read(s.record(recycle=False), EVERY), 1) == [Recorded]
    assert KERNELS["norm"].reads[1] == "scale"
