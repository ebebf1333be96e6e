"""Every branch of `devices_are_memory_compatible`, each with a place on the other side of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capstan.memory import (
    Capabilities,
    MemoryInfo,
    MemoryType,
    Way,
    devices_are_memory_compatible,
    way_between,
    why_incompatible,
)
from tests.unit.paper_load import ABLE

STORAGE = MemoryInfo("WebGPU_Buffer", "webgpu", MemoryType.DEFAULT)
STAGING = MemoryInfo("WebGPU_Staging", "webgpu", MemoryType.HOST_ACCESSIBLE, heap="gpu-process")
PYTHON = MemoryInfo("Cpu", "reference", MemoryType.DEFAULT, heap="python")
PYTHON_SHARED = replace(PYTHON, memory_type=MemoryType.HOST_ACCESSIBLE)
ORT = MemoryInfo("Cpu", "wasm", MemoryType.DEFAULT, heap="onnxruntime")
UNIFIED = replace(STAGING, name="Unified", device="igpu", heap="python")
"""HOST_ACCESSIBLE memory of another device that lies in Python's heap."""

NO_STAGING = replace(ABLE, staging=False, missing=(("staging", "the pattern came back as zeros"),))
MAPPABLE = replace(ABLE, mappable_storage=True)


SECOND = replace(STORAGE, device_id=1)
UNKNOWN = replace(UNIFIED, heap="")
BROKEN = replace(NO_STAGING, mappable_storage=True)


@pytest.mark.parametrize(
    ("a", "b", "capabilities", "reason"),
    [
        (PYTHON, PYTHON, ABLE, None),
        (PYTHON, replace(PYTHON, device="wasm", device_id=3), None, None),
        (PYTHON, PYTHON_SHARED, None, None),
        (PYTHON, UNIFIED, ABLE, None),
        (STORAGE, replace(STORAGE, alignment=256), None, None),
        (STAGING, replace(STAGING, alignment=256), ABLE, None),
        (STAGING, STORAGE, MAPPABLE, None),
        # A failed probe of staging memory says nothing of other memory.
        (STORAGE, STORAGE, NO_STAGING, None),
        (PYTHON, PYTHON, NO_STAGING, None),
        (PYTHON, ORT, ABLE, "Cpu (default) is in the python heap, Cpu (default) in the onnxruntime heap"),
        *((memory, other, MAPPABLE, "") for memory in (PYTHON, ORT, PYTHON_SHARED) for other in (STORAGE, STAGING)),
        (ORT, UNIFIED, ABLE, ""),
        (STAGING, STORAGE, ABLE, "its probe says mappable_storage is False"),
        (STAGING, STORAGE, None, "is no storage; its usage is copy_dst | map_read"),
        (
            UNKNOWN,
            replace(UNKNOWN, memory_type=MemoryType.DEFAULT),
            None,
            "whether igpu device 0 computes in host accessible memory was not probed",
        ),
        (
            STORAGE,
            SECOND,
            MAPPABLE,
            "WebGPU_Buffer (default) is memory of webgpu device 0, WebGPU_Buffer (default) of webgpu device 1",
        ),
        (STAGING, SECOND, MAPPABLE, ""),
        (STAGING, replace(STAGING, device_id=1), MAPPABLE, ""),
        *(
            (STAGING, other, BROKEN, "host accessible memory of webgpu device 0 does not work: the pattern came back")
            for other in (STAGING, STORAGE, PYTHON)
        ),
        (UNIFIED, STORAGE, BROKEN, ""),
    ],
)
def test_memory_is_one_or_the_reason_is_told(
    a: MemoryInfo, b: MemoryInfo, capabilities: Capabilities | None, reason: str | None
) -> None:
    for first, second in ((a, b), (b, a)):
        assert devices_are_memory_compatible(first, second, capabilities) is (reason is None)
        found = why_incompatible(first, second, capabilities)
        assert (found is None) is (reason is None)
    assert reason is None or reason in str(why_incompatible(a, b, capabilities))


@pytest.mark.parametrize(
    ("source", "destination", "way"),
    [
        (PYTHON, PYTHON_SHARED, Way.SHARED),
        (STORAGE, STORAGE, Way.SHARED),
        (PYTHON, STORAGE, Way.WRITE),
        (PYTHON, STAGING, Way.WRITE),
        (STORAGE, STAGING, Way.COPY),
        (STAGING, STORAGE, Way.MAP),
    ],
)
def test_bytes_that_move_go_the_way_that_usage_flags_allow(
    source: MemoryInfo, destination: MemoryInfo, way: Way
) -> None:
    assert way_between(source, destination) is way
