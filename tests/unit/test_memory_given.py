"""Buffers that a user gives for a pool: what is accepted, and what each mistake is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from capstan.errors import ArgumentTypeError, BufferMismatchError, ClosedError, MemoryTypeError
from capstan.memory import (
    AlignmentRequirements,
    DeviceBuffer,
    DeviceSpan,
    Loan,
    MemoryInfo,
    MemoryType,
    PoolItem,
    Pools,
    check_given,
    check_pools,
)

STORAGE = MemoryInfo("WebGPU_Buffer", "webgpu", MemoryType.DEFAULT)
STAGING = MemoryInfo("WebGPU_Staging", "webgpu", MemoryType.HOST_ACCESSIBLE, heap="gpu-process")
ALIGNMENT = AlignmentRequirements(start=16, size=16, span_offset=256)
ITEMS = (
    PoolItem("kv", "persistent", 4096, 16, True),
    PoolItem("state", "persistent", 32, 16, False),
    PoolItem("ring", "persistent", 1024, 16, False),
)


def buffer(size: int, memory: MemoryInfo = STORAGE, label: str = "mine") -> DeviceBuffer:
    return DeviceBuffer(object(), size, memory, label=label, free=lambda: None)


def given(**changes: DeviceBuffer | DeviceSpan) -> dict[str, DeviceBuffer | DeviceSpan]:
    """A buffer of the right size for each item, with changes."""
    return {item.name: buffer(item.bytes, label=item.name) for item in ITEMS} | changes


def check(
    buffers: Mapping[str, DeviceBuffer | DeviceSpan], items: tuple[PoolItem, ...] = ITEMS
) -> dict[str, DeviceSpan]:
    return check_given(items, buffers, STORAGE, ALIGNMENT)


def refused(expected: str, buffers: Mapping[str, DeviceBuffer | DeviceSpan]) -> None:
    with pytest.raises(BufferMismatchError) as caught:
        check(buffers)
    assert str(caught.value) == expected


def test_of_a_buffer_for_each_tensor_as_much_is_used_as_it_needs() -> None:
    buffers = given(kv=buffer(8192))
    spans = check(buffers)
    assert {name: (span.buffer, span.offset, span.length) for name, span in spans.items()} == {
        name: (buffers[name], 0, size) for name, size in (("kv", 4096), ("state", 32), ("ring", 1024))
    }


def test_tensors_that_are_not_bound_may_share_a_buffer() -> None:
    shared = buffer(2048)
    spans = check(given(state=shared.span(0, 32), ring=shared.span(256, 1024)))
    assert (spans["state"].offset, spans["ring"].offset) == (0, 256)


def closed() -> DeviceBuffer:
    made = buffer(4096)
    made.close()
    return made


SHARED = buffer(8192, label="shared")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"logits": buffer(64)}, "a buffer for 'logits' was given; expected 'kv', 'ring', 'state'"),
        (
            {"kv": buffer(4080)},
            "'kv': expected at least 4096 bytes, got 4080; query_memory_requirements lists",
        ),
        ({"ring": buffer(4096).span(0, 1008)}, "'ring': expected at least 1024 bytes, got 1008; query_memory_"),
        ({"state": buffer(40)}, "'state': expected a multiple of 16 bytes, got 40; round its size up"),
        (
            {"ring": buffer(2048).span(128, 1024)},
            "'ring': expected an offset that is a multiple of 256, got 128; alignment_requirements gives the multiple",
        ),
        (
            {"kv": buffer(4096, replace(STORAGE, alignment=8))},
            "'kv': expected a start at a multiple of 16 bytes, got 8; allocate it aligned",
        ),
        (
            {"kv": buffer(8192).span(256, 4096)},
            "'kv': expected the start of a buffer, got offset 256; give it a separate buffer",
        ),
        *(
            (
                {"kv": SHARED.span(0, 4096), other: SHARED.span(4096, 1024)},
                "'kv' shares buffer 'shared' with another tensor; give it a separate buffer",
            )
            for other in ("state", "ring")
        ),
        (
            {"state": SHARED.span(0, 272), "ring": SHARED.span(256, 1024)},
            "'ring' and 'state' were given the same bytes, from 256 of buffer 'shared'; give each separate bytes",
        ),
        (
            {"kv": closed()},
            "'kv': expected an open buffer, got a closed one; keep it open until the generator is closed",
        ),
        (
            {"kv": buffer(4096, replace(STORAGE, device_id=1))},
            "'kv': expected WebGPU_Buffer of webgpu device 0, got WebGPU_Buffer of webgpu device 1 ",
        ),
        (
            {"state": buffer(32, replace(STAGING, device_id=1))},
            "'state': expected WebGPU_Buffer of webgpu device 0, got WebGPU_Staging of webgpu device 1 ",
        ),
        (
            {"state": buffer(32, STAGING)},
            "'state': buffer 'mine' is in WebGPU_Staging of webgpu device 0, whose usage is copy_dst | map_read, ",
        ),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused_with_the_remedy(
    changes: dict[str, DeviceBuffer | DeviceSpan], expected: str
) -> None:
    buffers = given(**changes)
    before = {name: repr(item) for name, item in buffers.items()}
    with pytest.raises(BufferMismatchError) as caught:
        check(buffers)
    assert expected in str(caught.value)
    assert isinstance(caught.value, MemoryTypeError) == ("whose usage is" in expected)
    assert {name: repr(item) for name, item in buffers.items()} == before


def test_a_pool_is_given_whole() -> None:
    buffers = given(kv=buffer(4096, replace(STORAGE, alignment=32)))
    check(buffers)
    del buffers["kv"], buffers["ring"]
    refused("no buffer was given for 'kv', 'ring'; give buffers for all tensors of a pool, or for none", buffers)


def test_what_an_open_generator_holds_is_given_to_no_other() -> None:
    buffers = given()
    loan = Loan(check(buffers), whole=["kv"])
    refused(
        "the buffer for 'kv': bytes 0 to 4096 of buffer 'kv' are in use, as 'kv' of an open generator; close that one "
        "first, or give other bytes",
        given(kv=buffers["kv"]),
    )
    loan.end()
    loan.end()
    check(buffers)


def test_parts_of_one_buffer_may_be_of_several_generators() -> None:
    shared = buffer(4096, label="shared")
    loan = Loan(check(given(state=shared.span(0, 32), ring=shared.span(256, 1024))))
    check(given(state=shared.span(2048, 32), ring=shared.span(2304, 1024)))
    refused(
        "the buffer for 'ring': bytes 256 to 1280 of buffer 'shared' are in use, as 'ring' of an open generator; close "
        "that one first, or give other bytes",
        given(state=shared.span(2048, 32), ring=shared.span(1024, 1024)),
    )
    refused(
        "the buffer for 'kv': bytes 0 to 32 of buffer 'shared' are in use, as 'state' of an open generator; close that "
        "one first, or give other bytes",
        given(kv=shared),
    )
    loan.end()


def test_a_loan_keeps_a_closed_buffer_until_its_end() -> None:
    freed: list[str] = []
    borrowed = DeviceBuffer(object(), 32, STORAGE, label="borrowed", free=lambda: freed.append("borrowed"))
    loan = Loan({"state": borrowed.span()})
    borrowed.close()
    assert freed == []
    loan.end()
    assert freed == ["borrowed"]


def test_a_loan_of_a_closed_buffer_holds_nothing() -> None:
    freed: list[str] = []
    one = DeviceBuffer(object(), 32, STORAGE, free=lambda: freed.append("one"))
    closed = buffer(32)
    span = closed.span()
    closed.close()
    with pytest.raises(ClosedError):
        Loan({"state": one.span(), "ring": span})
    one.close()
    assert freed == ["one"]
    assert one.loans == []


SCRATCH = (PoolItem("tape scratch 0", "scratch", 512, 16, True), PoolItem("tape scratch 1", "scratch", 64, 16, True))


def test_scratch_is_shared_as_scratch_only() -> None:
    between = {item.name: buffer(item.bytes, label=item.name) for item in SCRATCH}
    loan = Loan(check(between, items=SCRATCH), whole=list(between), shared=True)
    Loan(check(between, items=SCRATCH), whole=list(between), shared=True).end()
    refused(
        "the buffer for 'state': bytes 0 to 64 of buffer 'tape scratch 1' are in use, as 'tape scratch 1' of an open "
        "generator; close that one first, or give other bytes",
        given(state=between["tape scratch 1"]),
    )
    loan.end()
    held = Loan(check(given(kv=buffer(4096, label="cache"))), whole=["kv"])
    with pytest.raises(BufferMismatchError, match="are in use, as 'kv' of an open generator"):
        check({**between, "tape scratch 0": held.spans["kv"].buffer}, items=SCRATCH)
    held.end()


def pools(**given: Mapping[str, DeviceBuffer | DeviceSpan]) -> dict[str, DeviceSpan]:
    items = (*ITEMS, PoolItem("mask", "io", 64, 16, True), *SCRATCH)
    return check_pools(items, Pools(**given), STORAGE, ALIGNMENT)


def test_pools_are_checked_against_one_another() -> None:
    io = {"mask": buffer(8192, label="shared")}
    scratch = {item.name: buffer(item.bytes) for item in SCRATCH}
    assert set(pools(persistent=given(), io=io, scratch=scratch)) == {"kv", "state", "ring", "mask", *scratch}
    with pytest.raises(
        BufferMismatchError, match="'mask' and 'kv' were given the same bytes, from 0 of buffer 'shared'"
    ):
        pools(persistent=given(kv=io["mask"]), io=io)
    with pytest.raises(BufferMismatchError, match="'tape scratch 0' and 'mask' were given the same bytes"):
        pools(io=io, scratch={**scratch, "tape scratch 0": io["mask"]})
    with pytest.raises(BufferMismatchError, match="a buffer for 'mask' was given; expected 'kv', 'ring', 'state'"):
        pools(persistent={**given(), **io})
    with pytest.raises(BufferMismatchError, match="no buffer was given for 'tape scratch 1'"):
        pools(scratch={"tape scratch 0": buffer(512)})


def test_what_is_no_buffer_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="'mask': b.*each value is a DeviceBuffer or a DeviceSpan"):
        pools(io={"mask": bytes(64)})  # type: ignore[dict-item]


def test_a_buffer_has_both_of_onnxruntimes_names() -> None:
    newer = MemoryInfo("WebGPU_Buf", "webgpu", MemoryType.DEFAULT)
    assert (newer, newer.name) == (STORAGE, "WebGPU_Buffer")
