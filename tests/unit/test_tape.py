"""The passes over a recorded step, on small recordings made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from capstan.errors import TapeError
from capstan.tape import (
    BindGroup,
    Clear,
    Command,
    Copy,
    Dispatch,
    DispatchIndirect,
    Op,
    Pipeline,
    Recording,
    TableGroup,
    Write,
    captured_half,
    check_replayable,
    copies_lost_by_ort,
    direct_dispatches,
    reaching_definition,
    slice_for,
    without_clears,
)

READ_TO_WRITE = Pipeline("read to write", {(0, 0): "read", (0, 1): "read_write"})
WITH_UNIFORM = Pipeline("with uniform", {(0, 0): "read", (0, 1): "read_write", (0, 2): "uniform"})
PLAIN, PARAMETRIC, OTHER = 1, 2, 3
SIZE = 64


def recording(ops: Sequence[Op], *bound: tuple[int, ...]) -> Recording:
    """A recording whose bind group 100 + i binds `bound[i]` to bindings 0, 1, ...; buffers have SIZE bytes."""
    groups = {
        100 + i: BindGroup(tuple((b, buffer, 0, SIZE) for b, buffer in enumerate(group)))
        for i, group in enumerate(bound)
    }
    buffers = {buffer for group in bound for buffer in group}
    for op in ops:
        match op:
            case Copy():
                buffers |= {op.source, op.target}
            case Clear() | Write() | DispatchIndirect():
                buffers.add(op.buffer)
    return Recording(
        7,
        tuple(ops),
        {PLAIN: READ_TO_WRITE, PARAMETRIC: WITH_UNIFORM, OTHER: WITH_UNIFORM},
        groups,
        dict.fromkeys(buffers, SIZE),
    )


def run(group: int, pipeline: int = PLAIN, x: int = 1) -> Dispatch:
    return Dispatch(pipeline, (group,), x, 1, 1)


def indirect(group: int, buffer: int, offset: int = 0) -> DispatchIndirect:
    return DispatchIndirect(PLAIN, (group,), buffer, offset)


class TestCapturedHalf:
    def test_is_the_first_of_two_equal_halves_without_host_writes(self) -> None:
        step: list[Op] = [run(100), indirect(101, 9)]
        write, copy, clear = Write(5, 0, b"abcd"), Copy(1, 0, 2, 0, 4), Clear(3, 0, 4)
        ops: list[Op] = [write, step[0], copy, clear, write, step[1], *step]
        assert captured_half(recording(ops, (1, 2), (2, 3))) == (step[0], copy, clear, step[1])

    def test_keeps_what_comes_between_the_halves_with_the_first(self) -> None:
        copy = Copy(1, 0, 2, 0, 4)
        assert captured_half(recording([run(100), copy, run(100)], (1, 2))) == (run(100), copy)

    @pytest.mark.parametrize(
        ("ops", "message"),
        [
            ([], "recorded no dispatch"),
            ([Copy(1, 0, 2, 0, 4)], "recorded no dispatch"),
            ([run(100)], "has 1 dispatches, which are not one sequence twice"),
            ([run(100), run(101), run(100)], "has 3 dispatches"),
            ([run(100), run(101)], "has 2 dispatches"),
            ([run(100), run(100, x=2)], "has 2 dispatches"),
            ([run(100), indirect(100, 9)], "has 2 dispatches"),
            ([run(100), run(101), run(101), run(100)], "has 4 dispatches"),
        ],
        ids=["nothing", "no_dispatch", "one", "odd", "other_groups", "other_size", "other_kind", "other_order"],
    )
    def test_refuses_what_is_not_one_sequence_twice(self, ops: list[Op], message: str) -> None:
        with pytest.raises(TapeError, match=message):
            captured_half(recording(ops, (1, 2), (2, 3)))


class TestCheckReplayable:
    def test_accepts_uploads_that_stay(self) -> None:
        ops: list[Op] = [Write(3, 0, b"aaaa"), Write(3, 4, b"bbbb"), run(100, PARAMETRIC), Write(3, 0, b"aaaa")]
        check_replayable(recording(ops, (1, 2, 3)))

    def test_refuses_a_range_uploaded_twice_with_different_contents(self) -> None:
        ops: list[Op] = [Write(3, 0, b"aaaa"), run(100, PARAMETRIC), Write(3, 0, b"bbbb")]
        with pytest.raises(TapeError, match="buffer 3 is uploaded twice in one step with different contents"):
            check_replayable(recording(ops, (1, 2, 3)))

    @pytest.mark.parametrize(
        "second",
        [Write(3, 4, b"cccc"), Write(3, 7, b"cccc"), Write(3, 0, b"aaab"), Write(3, 2, b"aabc"), Write(3, 0, b"baaab")],
    )
    def test_refuses_another_range_that_overlaps_with_different_contents(self, second: Write) -> None:
        first = Write(3, 0, b"aaaabbbb")
        orders: list[list[Op]] = [[first, run(100, PARAMETRIC), second], [second, run(100, PARAMETRIC), first]]
        for ops in orders:
            with pytest.raises(TapeError, match="buffer 3 is uploaded twice in one step with different contents"):
                check_replayable(recording(ops, (1, 2, 3)))

    @pytest.mark.parametrize(
        "second", [Write(3, 4, b"bbbbcc"), Write(3, 8, b"cc"), Write(3, 10, b"ccccdddd"), Write(3, 2, b"aabb")]
    )
    def test_accepts_another_range_that_agrees_where_it_overlaps(self, second: Write) -> None:
        first = Write(3, 0, b"aaaabbbb")
        for ops in ([first, second], [second, first]):
            check_replayable(recording([*ops, run(100, PARAMETRIC)], (1, 2, 3)))

    @pytest.mark.parametrize(
        "change", [run(100), Copy(1, 0, 2, 0, 4), Clear(2, 0, 4)], ids=["dispatch", "copy", "clear"]
    )
    def test_refuses_an_upload_that_the_step_changes(self, change: Op) -> None:
        with pytest.raises(TapeError, match="buffer 2 is uploaded by the host and then changed by the step"):
            check_replayable(recording([Write(2, 0, b"aaaa"), change], (1, 2)))

    def test_takes_an_undeclared_binding_for_a_write(self) -> None:
        with pytest.raises(TapeError, match="buffer 3 is uploaded by the host and then changed"):
            check_replayable(recording([Write(3, 0, b"aaaa"), run(100)], (1, 2, 3)))


class TestReachingDefinition:
    OPS = (run(100), run(101), Copy(2, 0, 4, 0, 4), run(100), Clear(3, 0, 4))
    """100: 1 -> 2; 101: 2 -> 3."""

    @pytest.mark.parametrize(
        ("use", "buffer", "found"),
        [(1, 2, 0), (4, 2, 3), (5, 3, 4), (4, 3, 1), (3, 4, 2), (0, 2, None), (5, 1, None), (1, 3, None)],
    )
    def test_is_the_last_write_before_the_use(self, use: int, buffer: int, found: int | None) -> None:
        assert reaching_definition(recording(self.OPS, (1, 2), (2, 3)), self.OPS, use, buffer) == found


class TestSliceFor:
    def test_keeps_the_ancestors_only(self) -> None:
        # 1 -> 2 -> 3, beside 5 -> 6.
        ops: list[Op] = [run(100), run(102), run(101)]
        assert slice_for(recording(ops, (1, 2), (2, 3), (5, 6)), ops, 2) == [0, 2]

    def test_follows_a_chain_to_its_start(self) -> None:
        ops: list[Op] = [run(100), run(101), run(103), run(102)]
        # 1 -> 2 -> 3 -> 4, beside 5 -> 6.
        assert slice_for(recording(ops, (1, 2), (2, 3), (3, 4), (5, 6)), ops, 3) == [0, 1, 3]

    def test_goes_on_past_a_dispatch_that_may_write_a_part(self) -> None:
        ops: list[Op] = [run(100), run(101), run(102)]
        # Both 1 -> 3 and 2 -> 3 may have left something in 3.
        assert slice_for(recording(ops, (1, 3), (2, 3), (3, 4)), ops, 2) == [0, 1, 2]

    @pytest.mark.parametrize(
        ("whole", "kept"),
        [
            (Copy(2, 0, 3, 0, SIZE), [1, 2]),
            (Clear(3, 0, SIZE), [1, 2]),
            (Copy(2, 0, 3, 0, SIZE - 4), [0, 1, 2]),
            (Clear(3, 4, SIZE - 4), [0, 1, 2]),
        ],
        ids=["copy", "clear", "part_copy", "part_clear"],
    )
    def test_ends_at_a_whole_copy_or_clear(self, whole: Op, kept: list[int]) -> None:
        ops: list[Op] = [run(100), whole, run(101)]
        assert slice_for(recording(ops, (1, 3), (3, 4)), ops, 2) == kept

    def test_follows_the_counts_of_an_indirect_dispatch(self) -> None:
        ops: list[Op] = [run(100), indirect(101, 2)]
        assert slice_for(recording(ops, (1, 2), (3, 4)), ops, 1) == [0, 1]

    def test_is_in_order_and_ends_with_the_target(self) -> None:
        ops: list[Op] = [run(100), run(100), run(101), run(101)]
        found = slice_for(recording(ops, (1, 2), (2, 3)), ops, 2)
        assert found == [0, 1, 2]


class TestDirectDispatches:
    """Bind group 100 computes counts into 2 from 1, with uniforms in 8 (and 101 likewise, in 3, with those in 9)."""

    BOUND = ((1, 2, 8), (1, 3, 9), (5, 6), (6, 7))

    def made(self, ops: list[Op], writes: Sequence[Write] = ()) -> tuple[list[list[Any]], list[TableGroup]]:
        return direct_dispatches(recording([*writes, *ops], *self.BOUND), ops)

    def test_definitions_with_equal_uniforms_share_a_table(self) -> None:
        ops: list[Op] = [run(100, PARAMETRIC), indirect(102, 2), run(101, PARAMETRIC), indirect(103, 3)]
        played, groups = self.made(ops, [Write(8, 0, b"same"), Write(9, 0, b"same")])
        assert groups == [TableGroup((1, 3), (0,), 2, 0)]
        assert played == [
            ["dispatch", PARAMETRIC, [100], 1, 1, 1],
            ["table", PLAIN, [102], 0],
            ["dispatch", PARAMETRIC, [101], 1, 1, 1],
            ["table", PLAIN, [103], 0],
        ]

    @pytest.mark.parametrize(
        ("second", "uniform"),
        [
            (run(101, PARAMETRIC), b"else"),
            (run(101, PARAMETRIC, x=2), b"same"),
            (Dispatch(PARAMETRIC, (101,), 1, 2, 1), b"same"),
            (Dispatch(PARAMETRIC, (101,), 1, 1, 2), b"same"),
            (run(101), b"same"),
            (run(101, OTHER), b"same"),
        ],
        ids=["uniforms", "width", "height", "depth", "bindings", "pipeline"],
    )
    def test_definitions_that_may_differ_get_tables_of_their_own(self, second: Dispatch, uniform: bytes) -> None:
        ops: list[Op] = [run(100, PARAMETRIC), indirect(102, 2), second, indirect(103, 3)]
        played, groups = self.made(ops, [Write(8, 0, b"same"), Write(9, 0, uniform)])
        assert [group.uses for group in groups] == [(1,), (3,)]
        assert [group.buffer for group in groups] == [2, 3]
        assert [op[-1] for op in played if op[0] == "table"] == [0, 1]

    def test_equal_uniforms_in_other_places_are_not_the_same(self) -> None:
        ops: list[Op] = [run(100, PARAMETRIC), indirect(102, 2), run(101, PARAMETRIC), indirect(103, 3)]
        _, groups = self.made(ops, [Write(8, 0, b"same"), Write(9, 4, b"same")])
        assert [group.uses for group in groups] == [(1,), (3,)]

    def test_copied_counts_have_the_table_of_their_copy(self) -> None:
        copy = Copy(2, 0, 3, 0, SIZE)
        ops: list[Op] = [run(100, PARAMETRIC), copy, indirect(103, 3), indirect(102, 3), indirect(102, 2)]
        _, groups = self.made(ops)
        assert [(group.uses, group.steps, group.buffer) for group in groups] == [((2, 3), (0, 1), 3), ((4,), (0,), 2)]

    def test_other_offsets_are_other_tables(self) -> None:
        ops: list[Op] = [run(100, PARAMETRIC), indirect(102, 2), indirect(103, 2, offset=12)]
        _, groups = self.made(ops)
        assert [(group.uses, group.offset) for group in groups] == [((1,), 0), ((2,), 12)]

    def test_the_definition_is_the_last_write_before_each_use(self) -> None:
        ops: list[Op] = [run(100, PARAMETRIC), indirect(102, 2), run(100, PARAMETRIC, x=3), indirect(103, 2)]
        _, groups = self.made(ops)
        assert [group.steps for group in groups] == [(0,), (0, 2)]

    def test_counts_from_outside_the_step_stay_indirect(self) -> None:
        ops: list[Op] = [indirect(102, 4), run(100, PARAMETRIC)]
        played, groups = self.made(ops)
        assert groups == []
        assert played[0] == ["indirect", PLAIN, [102], 4, 0]

    def test_everything_else_is_played_as_it_was(self) -> None:
        ops: list[Op] = [Clear(6, 0, 4), Copy(1, 0, 6, 4, 8), Write(8, 0, b"same"), run(102)]
        played, groups = self.made(ops)
        assert groups == []
        assert played == [["clear", 6, 0, 4], ["copy", 1, 0, 6, 4, 8], ["dispatch", PLAIN, [102], 1, 1, 1]]


def test_copies_lost_by_ort_are_counted_and_clears_are_not() -> None:
    ops: list[Op] = [Copy(1, 0, 2, 0, 4), run(100), Clear(1, 0, 4), Copy(2, 0, 1, 0, 4)]
    assert copies_lost_by_ort(ops) == 2
    assert copies_lost_by_ort([run(100), Clear(1, 0, 4)]) == 0


def test_without_clears_names_the_buffers_they_cleared() -> None:
    ops: list[Command] = [Clear(1, 0, 4), run(100), Copy(1, 0, 2, 0, 4), Clear(3, 0, 4), Clear(1, 4, 4)]
    assert without_clears(ops) == ((ops[1], ops[2]), frozenset({1, 3}))
