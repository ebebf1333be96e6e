"""Copy plans: what single cases come to, and thousands of random ones carried out by the simulator."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from capstan.errors import BindingError, BufferMismatchError
from capstan.memory import (
    Bounce,
    ByteCopy,
    Capabilities,
    Cast,
    Copy,
    CopyPlan,
    DeviceBuffer,
    FillMask,
    FillPositions,
    Group,
    HostCopy,
    MemoryInfo,
    Place,
    Readback,
    Transfer,
    Upload,
    Zero,
    devices_are_memory_compatible,
    plan_copies,
    plan_tensor_copies,
)
from capstan.memory.places import Kind
from tests.unit.copy_simulator import ORT, OTHER, PYTHON, STAGING, STORAGE, Refused, Simulator, World, ends

PROBED = Capabilities("test", True, True, False, False, False, False, True, True, 1 << 28, 1 << 27, 256)
MAPPABLE = replace(PROBED, mappable_storage=True)
PLANS = 4000


def at(memory: MemoryInfo, buffer: int, offset: int, length: int, size: int = 64, padding: int = 0) -> Place:
    return Place(memory, buffer, offset, length, size, padding)


def feed(source: Place, destination: Place, name: str = "x", rebind: bool = True) -> Transfer:
    return Transfer(name, source, destination, rebind)


def before(*feeds: Transfer, capabilities: Capabilities = PROBED) -> CopyPlan:
    return plan_copies(feeds, [], capabilities=capabilities)


# What one transfer comes to.


def test_an_array_is_written_to_the_gpu_in_one_copy() -> None:
    plan = before(feed(at(PYTHON, 1, 3, 16), at(STORAGE, 2, 0, 16)))
    assert plan.before == (Group("host", (Upload(1, 3, 2, 0, 16),)),)
    assert (plan.aliases, plan.staged, plan.temporaries, plan.copies) == ((), (), (), 1)
    assert plan.bindings == {"x": at(STORAGE, 2, 0, 16)}


def test_an_upload_that_does_not_fill_words_goes_through_a_temporary() -> None:
    plan = before(feed(at(PYTHON, 1, 0, 6), at(STORAGE, 2, 0, 6)))
    assert plan.before == (Group("host", (Upload(1, 0, -1, 0, 6),)), Group("device", (ByteCopy(-1, 0, 2, 0, 6),)))
    assert [(made.buffer, made.memory, made.bytes) for made in plan.temporaries] == [(-1, STORAGE, 6)]
    plan = before(feed(at(PYTHON, 1, 0, 8), at(STORAGE, 2, 2, 8), rebind=False))
    assert len(plan.steps) == 2


def test_the_padding_of_a_buffer_may_be_written() -> None:
    plan = before(feed(at(PYTHON, 1, 0, 6), at(STORAGE, 2, 0, 6, size=6, padding=10)))
    assert plan.steps == (Upload(1, 0, 2, 0, 6),)
    assert before(feed(at(PYTHON, 1, 0, 6), at(STORAGE, 2, 0, 6, size=6, padding=1))).copies == 2
    assert before(feed(at(PYTHON, 1, 0, 6), at(STORAGE, 2, 0, 6, size=7, padding=9))).copies == 2


def test_a_readback_takes_whole_words_and_keeps_the_bytes() -> None:
    plan = plan_copies([], [feed(at(STORAGE, 2, 5, 6), at(PYTHON, 1, 1, 6), "y")], capabilities=PROBED)
    step = Readback(2, 5, 1, 1, 6)
    assert step.window == (4, 8)
    assert plan.after == (Group("mapped", (step,), staging_bytes=8),)
    assert plan.staged == ("y",)


def test_a_readback_stays_inside_its_buffer() -> None:
    plan = plan_copies([], [feed(at(STORAGE, 2, 4, 2, size=6), at(PYTHON, 1, 0, 2), "y")], capabilities=PROBED)
    assert plan.steps == (ByteCopy(2, 4, -1, 0, 2), Readback(-1, 0, 1, 0, 2))
    plan = plan_copies([], [feed(at(STORAGE, 2, 4, 2, 6, padding=2), at(PYTHON, 1, 0, 2), "y")], capabilities=PROBED)
    assert plan.steps == (Readback(2, 4, 1, 0, 2),)


def test_readbacks_share_one_submit_and_one_staging_buffer() -> None:
    fetches = [feed(at(STORAGE, n, 0, 4 * n), at(PYTHON, 10 + n, 0, 4 * n), f"y{n}") for n in (1, 2, 3)]
    [group] = plan_copies([], fetches, capabilities=PROBED).after
    assert [step.staging_offset for step in group.steps if isinstance(step, Readback)] == [0, 8, 16]
    assert group.staging_bytes == 32


def test_tensors_are_not_placed_in_staging_memory_that_does_not_work() -> None:
    broken = replace(PROBED, staging=False)
    fetch = feed(at(STORAGE, 2, 0, 8), at(PYTHON, 1, 0, 8), "y")
    assert plan_copies([], [fetch], capabilities=broken, staging=STAGING).staged == ()


def test_a_tensor_where_it_can_be_bound_does_not_move() -> None:
    plan = before(feed(at(STORAGE, 1, 0, 16), at(STORAGE, 2, 0, 16)))
    assert (plan.steps, plan.aliases, plan.bindings) == ((), ("x",), {"x": at(STORAGE, 1, 0, 16)})
    plan = before(feed(at(PYTHON, 1, 0, 16), at(PYTHON, 2, 0, 16)))
    assert (plan.steps, plan.aliases) == ((), ("x",))
    fetch = feed(at(STORAGE, 2, 0, 16), at(STORAGE, 1, 0, 16), "y")
    plan = plan_copies([], [fetch], capabilities=PROBED)
    assert (plan.steps, plan.aliases, plan.bindings) == ((), ("y",), {"y": at(STORAGE, 1, 0, 16)})


def test_a_captured_sessions_tensors_are_copied_to_where_it_has_them() -> None:
    plan = before(feed(at(STORAGE, 1, 0, 16), at(STORAGE, 2, 0, 16), rebind=False))
    assert (plan.steps, plan.aliases) == ((Copy(1, 0, 2, 0, 16),), ())
    own = at(STORAGE, 2, 0, 16)
    assert before(feed(own, own, rebind=False)).aliases == ("x",)


@pytest.mark.parametrize(("multiple", "offset", "moves"), [(None, 0, 0), (None, 256, 1), (256, 256, 0), (256, 128, 1)])
def test_a_bound_place_starts_where_the_session_can_bind_it(multiple: int | None, offset: int, moves: int) -> None:
    source, own = at(STORAGE, 1, offset, 16, size=512), at(STORAGE, 2, 0, 16)
    plan = plan_copies([feed(source, own)], [], capabilities=PROBED, bound_offsets=multiple)
    assert len(plan.steps) == moves


def test_memory_that_is_less_aligned_than_the_session_wants_is_not_bound() -> None:
    wants = replace(PYTHON, alignment=64)
    assert before(feed(at(PYTHON, 1, 0, 16), at(wants, 2, 0, 16))).steps == (HostCopy(1, 0, 2, 0, 16),)


def test_two_heaps_are_one_copy_apart() -> None:
    assert before(feed(at(PYTHON, 1, 1, 5), at(ORT, 2, 0, 5))).before == (Group("host", (HostCopy(1, 1, 2, 0, 5),)),)


def test_two_devices_are_two_copies_apart_by_way_of_the_host() -> None:
    plan = before(feed(at(STORAGE, 1, 0, 8), at(OTHER, 2, 0, 8)))
    assert plan.before == (
        Group("mapped", (Readback(1, 0, -1, 0, 8),), 8),
        Group("host", (Upload(-1, 0, 2, 0, 8),)),
    )
    assert [made.memory.heap for made in plan.temporaries] == ["python"]


def test_staging_memory_is_mapped_by_the_host_and_copied_by_the_device() -> None:
    assert before(feed(at(PYTHON, 1, 1, 5), at(STAGING, 2, 2, 5))).steps == (HostCopy(1, 1, 2, 2, 5, mapped=True),)
    assert before(feed(at(STAGING, 1, 4, 8), at(STORAGE, 2, 0, 8))).steps == (Copy(1, 4, 2, 0, 8),)
    assert before(feed(at(STORAGE, 1, 4, 8), at(STAGING, 2, 0, 8))).steps == (Copy(1, 4, 2, 0, 8),)
    odd = before(feed(at(STAGING, 1, 5, 6), at(STORAGE, 2, 0, 6)))
    assert odd.steps == (Copy(1, 4, -1, 0, 8), ByteCopy(-1, 1, 2, 0, 6))
    odd = before(feed(at(STORAGE, 1, 5, 8), at(STAGING, 2, 0, 8)))
    assert odd.steps == (ByteCopy(1, 5, -1, 0, 8), Copy(-1, 0, 2, 0, 8))


@pytest.mark.parametrize(("offset", "length"), [(2, 8), (0, 6)])
def test_a_device_does_not_write_parts_of_words_in_staging_memory(offset: int, length: int) -> None:
    with pytest.raises(BufferMismatchError, match=r"in words of 4 bytes: start and end there at multiples of them"):
        before(feed(at(STORAGE, 1, 0, length), at(STAGING, 2, offset, length)))
    with pytest.raises(BufferMismatchError, match=r"in words of 4 bytes"):
        plan_tensor_copies([(at(STORAGE, 1, 0, length), at(STAGING, 2, offset, length))])


def test_a_copy_inside_a_staging_buffer_is_refused() -> None:
    with pytest.raises(BufferMismatchError, match=r"a copy inside staging buffer 1; .* use two buffers"):
        plan_tensor_copies([(at(STAGING, 1, 0, 8), at(STAGING, 1, 16, 8))])


# Boundary tensors in staging memory.


def test_boundary_tensors_are_bound_in_staging_memory_where_a_device_computes_in_it() -> None:
    feeds = [feed(at(PYTHON, 1, 0, 8), at(STORAGE, 2, 0, 8))]
    fetches = [feed(at(STORAGE, 3, 0, 6), at(PYTHON, 4, 0, 6), "y")]
    plan = plan_copies(feeds, fetches, capabilities=MAPPABLE, staging=STAGING)
    assert plan.staged == ("x", "y")
    assert [plan.bindings[name].memory for name in "xy"] == [STAGING, STAGING]
    assert plan.steps == (HostCopy(1, 0, -1, 0, 8, mapped=True), HostCopy(-2, 0, 4, 0, 6, mapped=True))
    assert plan_copies(feeds, fetches, capabilities=MAPPABLE).steps == (Upload(1, 0, 2, 0, 8), Readback(3, 0, 4, 0, 6))
    captured = [replace(transfer, rebind=False) for transfer in feeds]
    assert plan_copies(captured, [], capabilities=MAPPABLE, staging=STAGING).steps == (Upload(1, 0, 2, 0, 8),)


def test_where_staging_is_no_storage_only_fetches_pass_through_it() -> None:
    feeds = [feed(at(PYTHON, 1, 0, 8), at(STORAGE, 2, 0, 8))]
    fetches = [feed(at(STORAGE, 3, 0, 6), at(PYTHON, 4, 0, 6), "y")]
    plan = plan_copies(feeds, fetches, capabilities=PROBED, staging=STAGING)
    assert (plan.staged, plan.temporaries) == (("y",), ())


# In what order.


def test_uploads_come_before_one_submit_of_all_copies() -> None:
    plan = before(
        feed(at(STORAGE, 1, 4, 8), at(STORAGE, 2, 0, 8), "a"),
        feed(at(PYTHON, 3, 0, 6), at(STORAGE, 4, 0, 6), "b"),
        feed(at(STORAGE, 1, 32, 8), at(STORAGE, 5, 0, 8), "c"),
        feed(at(PYTHON, 3, 8, 8), at(STORAGE, 6, 0, 8), "d"),
    )
    assert [(group.kind, len(group.steps)) for group in plan.before] == [("host", 2), ("device", 3)]


def test_a_source_is_read_before_an_upload_overwrites_it() -> None:
    plan = before(
        feed(at(PYTHON, 3, 0, 8), at(STORAGE, 1, 0, 8), "new", rebind=False),
        feed(at(STORAGE, 1, 0, 8), at(STORAGE, 2, 0, 8), "old", rebind=False),
    )
    assert plan.before == (Group("device", (Copy(1, 0, 2, 0, 8),)), Group("host", (Upload(3, 0, 1, 0, 8),)))


def test_two_tensors_change_places_through_one_temporary() -> None:
    plan = before(
        feed(at(STORAGE, 1, 0, 8), at(STORAGE, 2, 0, 8), "a", rebind=False),
        feed(at(STORAGE, 2, 0, 8), at(STORAGE, 1, 0, 8), "b", rebind=False),
    )
    assert (plan.copies, len(plan.temporaries), len(plan.before)) == (3, 1, 1)


def test_only_what_turns_in_a_circle_gets_a_temporary() -> None:
    plan = before(
        feed(at(STORAGE, 3, 0, 4), at(STORAGE, 1, 0, 4), "short", rebind=False),
        feed(at(STORAGE, 1, 0, 8), at(STORAGE, 2, 0, 8), "a", rebind=False),
        feed(at(STORAGE, 2, 0, 12), at(STORAGE, 1, 4, 12), "b", rebind=False),
    )
    assert (plan.copies, len(plan.before), [made.bytes for made in plan.temporaries]) == (4, 1, [8])


def test_a_circle_is_opened_where_bytes_bounce_anyway() -> None:
    plan = before(
        feed(at(STORAGE, 2, 0, 4), at(STORAGE, 1, 0, 4), "short", rebind=False),
        feed(at(STORAGE, 1, 0, 8), at(STORAGE, 1, 8, 8), "inside", rebind=False),
        feed(at(STORAGE, 1, 8, 8), at(STORAGE, 2, 0, 8), "out", rebind=False),
    )
    assert plan.copies == 4
    assert before(feed(at(STORAGE, 1, 0, 8), at(STORAGE, 1, 4, 8), rebind=False)).copies == 2


def test_temporaries_are_loaded_by_the_host_before_the_device() -> None:
    plan = before(
        feed(at(STORAGE, 1, 5, 8), at(STAGING, 2, 0, 8), "a"), feed(at(PYTHON, 3, 0, 6), at(STORAGE, 4, 0, 6), "b")
    )
    assert [(group.kind, len(group.steps)) for group in plan.before] == [("host", 1), ("device", 3)]


def test_a_feed_is_not_bound_where_another_is_copied_to() -> None:
    plan = before(
        feed(at(STORAGE, 1, 0, 8), at(STORAGE, 2, 0, 8), "a"),
        feed(at(PYTHON, 3, 0, 8), at(STORAGE, 1, 0, 8), "b"),
    )
    assert plan.steps == (Copy(1, 0, 2, 0, 8), Upload(3, 0, 1, 0, 8))


def test_a_fetch_is_not_bound_over_a_feed_unless_the_run_may_update_it() -> None:
    cache = at(STORAGE, 1, 0, 16)
    past, present = feed(cache, at(STORAGE, 2, 0, 16), "past"), feed(at(STORAGE, 3, 0, 16), cache, "present")
    plan = plan_copies([past], [present], capabilities=PROBED)
    assert (plan.aliases, plan.steps) == (("past",), (Copy(3, 0, 1, 0, 16),))
    pairs = {"present": "past"}
    assert plan_copies([past], [present], capabilities=PROBED, in_place=pairs).aliases == ("past", "present")
    apart = replace(PROBED, in_place_cache=False)
    assert plan_copies([past], [present], capabilities=apart, in_place=pairs).copies == 1
    shifted = replace(present, destination=at(STORAGE, 1, 16, 16, size=64))
    overlapping = replace(past, source=at(STORAGE, 1, 0, 32), destination=at(STORAGE, 2, 0, 32))
    plan = plan_copies([overlapping], [shifted], capabilities=PROBED, in_place=pairs, bound_offsets=16)
    assert plan.aliases == ("past",)
    shorter = replace(present, source=at(STORAGE, 3, 0, 8), destination=at(STORAGE, 1, 0, 8))
    assert plan_copies([past], [shorter], capabilities=PROBED, in_place=pairs).aliases == ("past",)
    own = replace(present, source=cache, destination=at(STORAGE, 4, 8, 16))
    assert plan_copies([past], [own], capabilities=PROBED, in_place=pairs).steps[0] == Copy(1, 0, 2, 0, 16)
    half = replace(present, source=at(STORAGE, 1, 8, 16), destination=at(STORAGE, 1, 8, 16))
    assert plan_copies([past], [half], capabilities=PROBED, in_place=pairs).steps == (Copy(1, 0, 2, 0, 16),)


def test_a_feed_is_not_bound_where_the_run_puts_another_tensor() -> None:
    output = at(STORAGE, 3, 0, 16)
    plan = plan_copies(
        [feed(output, at(STORAGE, 2, 0, 16))], [feed(output, at(PYTHON, 1, 0, 16), "y")], capabilities=PROBED
    )
    assert plan.steps == (Copy(3, 0, 2, 0, 16), Readback(3, 0, 1, 0, 16))


def test_neighbours_move_in_one_copy() -> None:
    plan = before(
        feed(at(STORAGE, 1, 16, 6), at(STORAGE, 2, 0, 6), "a"), feed(at(STORAGE, 1, 22, 6), at(STORAGE, 2, 6, 6), "b")
    )
    assert plan.steps == (Copy(1, 16, 2, 0, 12),)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            feed(at(PYTHON, 1, 0, 8), at(STORAGE, 2, 0, 8)),
            feed(at(PYTHON, 1, 0, 8), at(STORAGE, 3, 0, 8)),
            "'x' is given twice",
        ),
        (
            feed(at(PYTHON, 1, 0, 8), at(STORAGE, 2, 0, 8)),
            feed(at(PYTHON, 1, 0, 8), at(STORAGE, 2, 4, 8), "z"),
            "'x' and 'z' go to the same bytes of buffer 2",
        ),
        (
            feed(at(PYTHON, 1, 0, 8), at(STORAGE, 2, 0, 8)),
            feed(at(PYTHON, 1, 0, 8), at(STORAGE, 3, 0, 12), "z"),
            "'z' has 8 bytes where it is and 12 where it goes",
        ),
    ],
)
def test_transfers_that_contradict_each_other_are_refused(first: Transfer, second: Transfer, message: str) -> None:
    with pytest.raises(BindingError, match=message):
        before(first, second)
    with pytest.raises(BindingError, match=message):
        plan_copies([], [first, second], capabilities=PROBED)


def test_a_place_is_inside_its_buffer() -> None:
    with pytest.raises(BufferMismatchError, match="bytes 60 to 68 of buffer 1, which has 64; stay inside it"):
        at(STORAGE, 1, 60, 8)


def test_a_span_is_a_place_with_the_padding_of_its_device() -> None:
    span = DeviceBuffer(7, 22, STORAGE, free=lambda: None).span(4, 18)
    assert Place.of(span, 16) == Place(STORAGE, 7, 4, 18, 22, 10)
    assert (Place.of(span, 16).free_after, Place.of(span).free_after) == (10, 0)


# Copies on one device.


def test_a_tensor_copy_takes_the_step_that_its_bytes_need() -> None:
    def one(source: Place, destination: Place) -> list[object]:
        [step] = plan_tensor_copies([(source, destination)])
        return step.as_json()

    assert one(at(STORAGE, 1, 4, 8), at(STORAGE, 2, 8, 8)) == ["copy", 1, 4, 2, 8, 8]
    assert one(at(STORAGE, 1, 5, 8), at(STORAGE, 2, 8, 8)) == ["bytes", 1, 5, 2, 8, 8]
    assert one(at(STORAGE, 1, 4, 8), at(STORAGE, 2, 9, 8)) == ["bytes", 1, 4, 2, 9, 8]
    assert one(at(STORAGE, 1, 4, 7), at(STORAGE, 2, 8, 7)) == ["bytes", 1, 4, 2, 8, 7]
    assert one(at(STORAGE, 1, 0, 7, 7, 9), at(STORAGE, 2, 0, 7, 7, 9)) == ["copy", 1, 0, 2, 0, 8]
    assert one(at(STORAGE, 1, 0, 7, 7), at(STORAGE, 2, 0, 7, 7, 9)) == ["bytes", 1, 0, 2, 0, 7]
    assert one(at(STORAGE, 1, 0, 8), at(STORAGE, 1, 4, 8)) == ["bounce", 1, 0, 1, 4, 8]


def test_what_a_copy_has_written_is_not_merged_away() -> None:
    pairs = [(at(STORAGE, 1, 0, 4), at(STORAGE, 1, 4, 4)), (at(STORAGE, 1, 4, 4), at(STORAGE, 1, 8, 4))]
    assert len(plan_tensor_copies(pairs)) == 2
    pairs = [(at(STORAGE, 1, 8, 4), at(STORAGE, 1, 4, 4)), (at(STORAGE, 1, 12, 4), at(STORAGE, 1, 8, 4))]
    assert plan_tensor_copies(pairs) == (Bounce(1, 8, 1, 4, 8),)


def test_nothing_is_copied_onto_itself_or_of_no_length() -> None:
    here = at(STORAGE, 1, 4, 8)
    assert plan_tensor_copies([(here, here), (at(STORAGE, 1, 0, 0), at(STORAGE, 2, 0, 0))]) == ()


def test_tensor_copies_stay_on_one_device_and_keep_their_length() -> None:
    with pytest.raises(BufferMismatchError, match="both must be in the memory of one GPU"):
        plan_tensor_copies([(at(STORAGE, 1, 0, 8), at(OTHER, 2, 0, 8))])
    with pytest.raises(BufferMismatchError, match="both must be in the memory of one GPU"):
        plan_tensor_copies([(at(PYTHON, 1, 0, 8), at(STORAGE, 2, 0, 8))])
    with pytest.raises(BufferMismatchError, match="a source of 8 bytes for a destination of 4"):
        plan_tensor_copies([(at(STORAGE, 1, 0, 8), at(STORAGE, 2, 0, 4))])


def test_device_steps_cross_as_lists() -> None:
    assert Zero(1, 3, 5).as_json() == ["zero", 1, 3, 5]
    assert Cast(1, 2, "float16", 3, 4, "float32", 5).as_json() == ["cast", 1, 2, "float16", 3, 4, "float32", 5]
    assert FillMask(1, 0, "int64", 8, (1, 2), (3, 4)).as_json() == ["mask", 1, 0, "int64", 8, [1, 2], [3, 4]]
    assert FillPositions(1, 8, "int32", (5, 6), 2).as_json() == ["positions", 1, 8, "int32", [5, 6], 2]


# Everything at random, carried out.


def naive(transfer: Transfer, others: list[Transfer]) -> int:
    """Copies that one transfer takes if nobody plans: one, or two through a buffer where the ways are not straight, or
    where another transfer writes what this one reads or reads what it writes. Between two devices each half counts."""
    source, destination = transfer.source, transfer.destination
    if source.length == 0:
        return 0
    bytewise = any(place.offset % 4 or place.length % 4 for place in ends(transfer))
    tangled = any(
        other is not transfer and (other.destination.overlaps(source) or destination.overlaps(other.source))
        for other in others
    )
    kinds = {source.kind, destination.kind}
    far = Kind.HEAP not in kinds and source.device != destination.device
    if far:
        return 2 * (2 if bytewise else 1)
    same_buffer = source.buffer == destination.buffer and kinds == {Kind.STORAGE}
    crossing = len(kinds) == 2 and kinds != {Kind.HEAP, Kind.STAGING}
    return 2 if same_buffer or tangled or (bytewise and crossing) else 1


def expected_after(simulator: Simulator, transfers: list[tuple[Place, Place]]) -> dict[int, bytes]:
    """What is everywhere once each destination has what its source had, and nothing else has changed."""
    contents = {number: bytearray(data) for number, data in simulator.contents().items()}
    taken = [simulator.read(source) for source, _ in transfers]
    for data, (_, destination) in zip(taken, transfers, strict=True):
        if destination.buffer >= 0:
            contents[destination.buffer][destination.offset : destination.end] = data
    return {number: bytes(data) for number, data in contents.items()}


MEMORIES = [STORAGE, STORAGE, STORAGE, OTHER, STAGING, STAGING, PYTHON, PYTHON, ORT]


@pytest.mark.parametrize("seed", range(4))
def test_random_plans_move_every_byte_right_and_touch_no_other(seed: int) -> None:
    rng = random.Random(seed)
    tally = {"plans": 0, "refused": 0, "steps": 0, "aliases": 0, "staged": 0}
    for _ in range(PLANS // 4):
        mappable = rng.random() < 0.2
        capabilities = replace(
            PROBED, mappable_storage=mappable, staging=rng.random() < 0.9, in_place_cache=rng.random() < 0.5
        )
        world = World.make(rng, rng.choices(MEMORIES, k=rng.choice([3, 5, 9])), mappable)
        feeds, fetches = world.transfers(6, "x"), world.transfers(6, "y")
        # A session's own places are its own: it does not put one tensor where it reads or puts another.
        fetches = [
            fetch
            for index, fetch in enumerate(fetches)
            if not any(fetch.source.overlaps(other.source) for other in fetches[:index])
            and not any(fetch.source.overlaps(feed.destination) for feed in feeds)
        ]
        pairs = {y.name: x.name for x, y in zip(feeds, fetches, strict=False) if rng.random() < 0.5}
        staging = STAGING if rng.random() < 0.5 else None
        offsets = rng.choice([None, 1, 4, 16])
        try:
            plan = plan_copies(
                feeds, fetches, capabilities=capabilities, staging=staging, bound_offsets=offsets, in_place=pairs
            )
        except BufferMismatchError:
            assert world.odd_staging([*feeds, *fetches])
            tally["refused"] += 1
            continue
        tally["plans"] += 1
        tally["steps"] += len(plan.steps)
        tally["aliases"] += len(plan.aliases)
        tally["staged"] += len(plan.staged)
        carry_out(world, plan, feeds, fetches, pairs if capabilities.in_place_cache else {}, capabilities)
    assert tally["plans"] > 3 * tally["refused"], tally
    assert min(tally["steps"], tally["aliases"] * 2, tally["staged"] * 4) > PLANS // 8, tally


def carry_out(
    world: World,
    plan: CopyPlan,
    feeds: list[Transfer],
    fetches: list[Transfer],
    in_place: dict[str, str],
    capabilities: Capabilities,
) -> None:
    simulator, rng = world.simulator, world.rng
    simulator.add_temporaries(plan.temporaries)
    given = {feed.name: simulator.read(feed.source) for feed in feeds}
    bound = [(feed.source, plan.bindings[feed.name]) for feed in feeds]
    wanted = expected_after(simulator, bound)
    simulator.run(plan.before)
    assert simulator.contents() == wanted
    # The run writes its outputs before it has read all of its inputs.
    made = {fetch.name: rng.randbytes(fetch.source.length) for fetch in fetches}
    for fetch in fetches:
        simulator.write(plan.bindings[fetch.name], made[fetch.name])
    updated = {feed for fetch, feed in in_place.items() if fetch in plan.aliases}
    for feed in feeds:
        if feed.name not in updated:
            assert simulator.read(plan.bindings[feed.name]) == given[feed.name]
    wanted = expected_after(simulator, [(plan.bindings[fetch.name], fetch.destination) for fetch in fetches])
    simulator.run(plan.after)
    assert simulator.contents() == wanted
    for fetch in fetches:
        assert simulator.read(fetch.destination) == made[fetch.name]
    limit = 0
    for transfers in (feeds, fetches):
        moved = [transfer for transfer in transfers if transfer.name not in plan.aliases]
        limit += sum(naive(transfer, moved) for transfer in moved)
    assert plan.copies <= limit
    groups = [*plan.before, *plan.after]
    assert all(a.kind != b.kind for part in (plan.before, plan.after) for a, b in pairwise(part))
    assert simulator.submits <= sum(group.kind != "host" for group in groups)
    for transfer in [*feeds, *fetches]:
        place = plan.bindings[transfer.name]
        own = transfer.destination if transfer in feeds else transfer.source
        assert place.same(own) or devices_are_memory_compatible(place.memory, own.memory, capabilities)
        assert transfer.rebind or place.same(own)


@pytest.mark.parametrize("seed", range(4))
def test_random_tensor_copies_do_what_a_loop_over_them_would(seed: int) -> None:
    rng = random.Random(100 + seed)
    merged = 0
    for _ in range(PLANS // 4):
        world = World.make(rng, rng.choices([STORAGE, STORAGE, STAGING], k=rng.choice([1, 2, 4])))
        pairs = [ends(transfer) for transfer in world.transfers(6, "x")]
        pairs += [ends(transfer) for transfer in world.transfers(6, "y")]
        simulator = world.simulator
        before = {number: bytearray(data) for number, data in simulator.contents().items()}
        try:
            steps = plan_tensor_copies(pairs)
        except BufferMismatchError:
            assert any(place.kind is Kind.STAGING for pair in pairs for place in pair)
            continue
        for source, destination in pairs:
            data = before[source.buffer][source.offset : source.end]
            before[destination.buffer][destination.offset : destination.end] = data
        if steps:
            simulator.submit(steps)
        assert simulator.contents() == {number: bytes(data) for number, data in before.items()}
        real = [(a, b) for a, b in pairs if a.length]
        merged += len(real) - len(steps)
        assert len(steps) <= len(real)
        cost = sum(2 if isinstance(step, Bounce) else 1 for step in steps)
        assert cost <= sum(2 if a.buffer == b.buffer else 1 for a, b in real)
    assert merged > PLANS // 40


# The simulator itself: what WebGPU refuses, it refuses.


@pytest.mark.parametrize(
    "step",
    [
        Copy(0, 2, 1, 0, 4),
        Copy(0, 0, 1, 2, 4),
        Copy(0, 0, 1, 0, 6),
        Copy(0, 0, 0, 8, 4),
        Copy(0, 0, 1, 16, 4),
        Copy(0, 0, 3, 0, 4),
        Copy(0, 0, 4, 0, 4),
        ByteCopy(0, 0, 0, 8, 4),
        ByteCopy(0, 0, 2, 0, 4),
        ByteCopy(2, 0, 0, 0, 4),
        Bounce(0, 0, 1, 0, 4),
        Bounce(2, 0, 2, 4, 4),
    ],
)
def test_the_simulator_refuses_what_webgpu_refuses(step: Copy | ByteCopy | Bounce) -> None:
    simulator = Simulator()
    for number, memory in enumerate([STORAGE, STORAGE, STAGING, OTHER, PYTHON]):
        simulator.add(number, memory, bytes(16))
    with pytest.raises(Refused):
        simulator.submit([step])


def test_the_simulator_writes_buffers_before_what_is_only_encoded() -> None:
    simulator = Simulator()
    simulator.add(0, PYTHON, b"new!")
    simulator.add(1, STORAGE, b"old!")
    simulator.add(2, STORAGE, b"....")
    simulator.run([Group("device", (Copy(1, 0, 2, 0, 4), Upload(0, 0, 1, 0, 4)))])
    assert simulator.contents()[2] == b"new!"
    for group in (
        Group("host", (Upload(0, 0, 1, 2, 2),)),
        Group("host", (Upload(1, 0, 2, 0, 4),)),
        Group("host", (Readback(1, 0, 0, 0, 4),)),
        Group("host", (HostCopy(0, 0, 0, 2, 2, mapped=True),)),
        Group("mapped", (Readback(1, 0, 0, 0, 4),), staging_bytes=0),
        Group("mapped", (Readback(0, 0, 0, 0, 4),), staging_bytes=8),
    ):
        with pytest.raises(Refused):
            simulator.run([group])
