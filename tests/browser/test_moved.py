"""moved.wgsl copies what it is to copy, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from capstan.tape import prefill_graph
from capstan.tape.kernel_plan import WorkgroupLimits
from capstan.tape.prefill_graph import Moved
from tests.browser.kernel_page import KernelPage, guarded


@pytest.mark.parametrize("count", [1, 64, 1000])
def test_words_are_copied(kernel_page: KernelPage, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_graph, "WIDEST", 3)
    x = np.random.default_rng(count).normal(0, 1, count + 64).astype(np.float32)
    [kernel] = Moved(4 * count).kernels((1,), (2,), WorkgroupLimits())
    plan, buffers = kernel.plan, {"x": x.tobytes(), "y": guarded(count)}
    assert not callable(plan.counts)
    found = kernel_page.run(plan.shader, plan.constants, buffers, plan.counts)
    assert found == x[:count].tobytes() + guarded(count)[4 * count :]
