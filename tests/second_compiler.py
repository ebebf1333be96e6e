"""naga, the WGSL compiler of Firefox, as wgpu-native has it: a second opinion on texts that Chromium's Tint takes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from buildtools.other_browsers import LAVAPIPE

__all__ = ["Naga"]

FEATURES = ("shader-f16", "subgroup", "subgroup-barrier")
NOT_YET = "enable subgroups;"
"""naga has the functions of subgroups as wgpu's own feature, without this line of the standard."""


class Naga:
    """Parses and validates modules."""

    def __init__(self, device: Any) -> None:
        self._device = device

    @classmethod
    @cache
    def opened(cls) -> Naga:
        """On Mesa's lavapipe, which has f16 and subgroups; where it cannot be had, the test is skipped."""
        if LAVAPIPE.find() is None:
            pytest.skip(LAVAPIPE.remedy)
        import wgpu

        adapters = [each for each in wgpu.gpu.enumerate_adapters_sync() if set(FEATURES) <= set(each.features)]
        assert adapters, f"no adapter of wgpu-native has {', '.join(FEATURES)}"
        return cls(adapters[0].request_device_sync(required_features=list(FEATURES)))

    def refusal(self, code: str) -> str | None:
        """The compiler's error for a module; None if it compiles."""
        import wgpu

        try:
            self._device.create_shader_module(code=code.replace(NOT_YET, ""))
        except wgpu.GPUError as error:
            return str(error)
        return None
