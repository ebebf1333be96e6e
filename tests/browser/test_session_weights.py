"""External data of any session goes the way of a model's weights: fetched once, stored, one set on the GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext

from buildtools.site import assemble
from capstan_host.headless.static_server import running
from capstan_host.testing.harness import Harness
from tests.browser.model_variants import LLAMA
from tests.browser.page_scripts import PageScripts
from tests.browser.weight_server import WeightServer
from tests.weighted_nodes import KEPT, SHARED, Weighted, pairs, save, two_layers

CPU, WEBGPU = "CPUExecutionProvider", "WebGpuExecutionProvider"
BOOT_MS = 120_000
BIG = two_layers()
both = pytest.mark.parametrize("provider", [WEBGPU, CPU])


@dataclass
class Visit:
    """A server of models, and a tab of one browser profile."""

    server: WeightServer
    context: BrowserContext
    scripts: PageScripts
    folder: Path
    """The folder that is served as the model 'here'."""

    @classmethod
    def boot(cls, server: WeightServer, context: BrowserContext) -> PageScripts:
        page = context.new_page()
        page.set_default_navigation_timeout(BOOT_MS)
        return PageScripts.install(Harness(page, server.url))

    def again(self) -> None:
        """The page is left, and visited once more."""
        self.scripts.harness.page.close()
        self.scripts = self.boot(self.server, self.context)

    def run(self, function: str, **arguments: Any) -> Any:
        return self.scripts.run("session_weights", function, "here", **arguments)

    def open(self, case: Weighted, provider: str = WEBGPU, **arguments: Any) -> dict[str, Any]:
        """Open a session and run it; what it computes is right."""
        self.server.forget()
        told = self.run("opened", provider=provider, x=given(case.x), **arguments)
        if told["error"] is None:
            require_near(told["y"], case)
        return dict(told)

    @property
    def sent(self) -> int:
        """Bytes of data files that went over the network since a session was opened."""
        return sum(count for path, count in self.server.sent.items() if path.endswith(".data"))


def given(x: np.ndarray[Any, np.dtype[Any]]) -> Any:
    return ["q" if x.dtype == np.int64 else "f", list(x.shape), x.ravel().tolist()]


def require_near(found: list[float], case: Weighted) -> None:
    expected = case.computed().ravel()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max(), err_msg=case.name)


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    with running(WeightServer(assemble(), {})) as server:
        context = browser.new_context()
        yield Visit(server, context, Visit.boot(server, context), Path())
        context.close()


@pytest.fixture
def visit(opened: Visit, tmp_path: Path) -> Iterator[Visit]:
    """With a folder of its own that holds `BIG`, and nothing stored."""
    opened.folder = opened.server.models["here"] = tmp_path
    save(BIG.model(), tmp_path)
    opened.run("evict")
    yield opened
    found = opened.scripts.faults()
    assert not found, f"went wrong in the page: {found}"


SIZE = BIG.shared_bytes + 512
"""Bytes of the data file."""


@pytest.mark.extended
def test_two_sessions_and_a_capture_hold_one_set_of_weights(visit: Visit) -> None:
    first = visit.open(BIG, keep="first")
    assert visit.sent == (visit.folder / "model.data").stat().st_size == SIZE
    assert (first["stored"], first["warnings"]) == ([["model.data", SIZE, True]], [])
    assert first["inputs"] == ["x"]
    assert first["held"]["weights"] == first["asked"] == BIG.shared_bytes
    second = visit.open(BIG, keep="second")
    assert visit.sent == 0
    assert second["held"]["weights"] == BIG.shared_bytes
    capture = visit.run("captured", keep="second", x=given(BIG.x))
    require_near(capture["y"], BIG)
    assert visit.sent == 0
    # onnxruntime allocates values between nodes, and no weight.
    for found in (first, second, capture):
        assert found["held"]["weights"] == BIG.shared_bytes
        assert found["held"].get("scratch", 0) < BIG.shared_bytes / 8, found["held"]
    assert visit.run("close", keep="first")["weights"] == BIG.shared_bytes
    require_near(visit.run("run_kept", keep="second", x=given(BIG.x)), BIG)
    assert visit.run("close", keep="second")["weights"] == BIG.shared_bytes
    assert visit.run("close", keep="capture").get("weights", 0) == 0


@pytest.mark.extended
@both
def test_a_second_visit_fetches_no_weights_with_and_without_the_server(provider: str, visit: Visit) -> None:
    first = visit.open(BIG, provider)
    assert (first["error"], visit.sent) == (None, SIZE)
    visit.again()
    assert visit.open(BIG, provider)["warnings"] == []
    assert visit.sent == 0
    visit.again()
    visit.context.route("**/models/**", lambda route: route.abort())
    try:
        away = visit.open(BIG, provider)
        visit.scripts.expect("net::ERR_FAILED")
        assert away["error"] is None
        assert not [request for request in visit.server.requests if request.path.startswith("/models/")]
        assert any("the stored weights are assumed to be current" in text for text in away["warnings"])
    finally:
        visit.context.unroute("**/models/**")


@pytest.mark.extended
def test_sessions_on_the_cpu_fetch_what_is_not_stored_yet(visit: Visit) -> None:
    assert visit.open(BIG, CPU)["stored"] == [["model.data", SIZE, True]]
    assert visit.sent == SIZE
    for provider in (CPU, WEBGPU):
        assert visit.open(BIG, provider)["error"] is None
        assert visit.sent == 0


@pytest.mark.extended
@both
def test_a_file_that_changes_between_two_sessions_is_told_and_used(provider: str, visit: Visit) -> None:
    visit.open(BIG, provider, keep="first")
    other = Weighted(BIG.name, BIG.nodes, BIG.x, {name: -2 * array for name, array in BIG.weights.items()})
    save(other.model(), visit.folder)
    second = visit.open(other, provider)
    assert visit.sent == SIZE
    [warning] = second["warnings"]
    assert "model.data changed since it was stored: it was " in warning
    require_near(visit.run("run_kept", keep="first", x=given(BIG.x)), BIG)
    visit.run("close", keep="first")
    assert second["stored"] == [["model.data", SIZE, True]]


@pytest.mark.extended
@both
def test_bytes_that_change_behind_one_etag_are_refused(provider: str, visit: Visit) -> None:
    """A damaged store and a server with other bytes of the same name, size and time."""
    visit.open(BIG, provider)
    path = visit.folder / "model.data"
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    visit.scripts.run("weights", "spoil", position=4999)
    [[_, _, complete]] = visit.run("stored")
    assert complete
    assert visit.scripts.run("weights", "verify") == [[0]]
    found = visit.open(BIG, provider)
    assert found["error"].startswith("WeightsChangedError: "), found
    assert "remove the stored file with WeightStore().evict(URL)" in found["error"]


@pytest.mark.one_in(2)
@both
def test_a_short_file_is_refused_before_it_is_fetched(provider: str, visit: Visit) -> None:
    path = visit.folder / "model.data"
    path.write_bytes(path.read_bytes()[:-100])
    found = visit.open(BIG, provider)
    assert f"{SIZE - 100} bytes, but model.onnx names weights up to byte {SIZE}" in found["error"]
    assert (visit.sent, visit.run("stored")) == (0, [])


@pytest.mark.one_in(2)
@both
def test_the_store_can_be_left_out(provider: str, visit: Visit) -> None:
    found = visit.open(BIG, provider, keep="first", disabled=True)
    assert (found["error"], found["stored"]) == (None, [])
    # On WebGPU b, which is small and stays an initializer, is asked for by itself.
    assert visit.sent == SIZE + (512 if provider == WEBGPU else 0)
    if provider == WEBGPU:
        # Weights on the GPU are shared all the same.
        again = visit.open(BIG, provider, disabled=True)
        assert (again["held"]["weights"], visit.sent) == (BIG.shared_bytes, 512)
    visit.run("close", keep="first")


@pytest.mark.one_in(2)
@both
def test_data_files_may_be_in_python_s_own_file_system(provider: str, visit: Visit) -> None:
    found = visit.run("on_disk", provider=provider, x=given(BIG.x))
    require_near(found["y"], BIG)
    assert found["weights"] == (BIG.shared_bytes if provider == WEBGPU else 0)
    assert found["missing"].startswith("ModelFileError: ")
    assert "model.data" in found["missing"]


def test_a_model_and_a_session_over_its_files_share_weights(visit: Visit) -> None:
    visit.server.models["here"] = LLAMA
    alone, both, after, left = visit.run("model_and_session")
    assert alone <= both < 2 * alone
    assert (after < both, left) == (True, 0)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", SHARED, ids=lambda case: case.name)
def test_weights_as_inputs_give_what_the_native_onnxruntime_gives(case: Weighted, visit: Visit) -> None:
    save(case.model(), visit.folder, case.name)
    found = visit.open(case, file=case.name)
    assert (found["error"], found["warnings"], found["inputs"]) == (None, [], ["x"])
    assert found["held"]["weights"] == case.shared_bytes
    assert found["readbacks"] == 1, "the run reads more than its result"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.name)
def test_weights_that_are_needed_as_values_stay_initializers(case: Weighted, visit: Visit) -> None:
    save(case.model(), visit.folder, case.name)
    found = visit.open(case, file=case.name)
    assert found["error"] is None
    assert found["held"].get("weights", 0) == 0
    assert bool(found["warnings"]) == bool(case.reason)
    assert case.reason in "\n".join(found["warnings"])
    assert visit.open(case, file=case.name)["error"] is None
    assert visit.sent == 0


def test_a_session_that_is_made_anew_after_a_failed_run_has_its_weights(visit: Visit) -> None:
    case = pairs()
    save(case.model(), visit.folder)
    visit.open(case, keep="first")
    visit.server.forget()
    visit.scripts.expect("requested shape")
    assert visit.run("run_kept", keep="first", x=given(case.x[:3])) == []
    require_near(visit.run("run_kept", keep="first", x=given(case.x)), case)
    assert visit.sent == 0
    assert visit.run("close", keep="first").get("weights", 0) == 0
