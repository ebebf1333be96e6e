"""The devices of a page: their memory operations, infos and probes."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan_host.testing.harness import Harness
from tests import oracle
from tests.browser.page_scripts import PageScripts
from tests.device_cases import check_conversions, check_masks, check_refusals

pytestmark = pytest.mark.own_page

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
DEVICES = ["webgpu", "wasm"]
device = pytest.mark.parametrize("device", DEVICES)


@pytest.mark.one_in(2)
@device
def test_copies_zeros_and_writes_of_any_alignment(device: str, scripts: PageScripts) -> None:
    assert scripts.run("memory", "on_device", case="copies", device=device) == []


@device
def test_a_readback_moves_the_span_only(device: str, scripts: PageScripts) -> None:
    found = scripts.run("memory", "on_device", case="readbacks", device=device)
    assert found["wrong"] == []
    # Every clock is fine enough to time a copy of 16 MiB.
    assert 0 < found["copying"] <= found["elapsed"] - found["waiting"]
    assert found["waiting"] > 0 if device == "webgpu" else found["waiting"] == 0


@pytest.mark.one_in(2)
@device
def test_masks_and_positions_of_any_batch(device: str, scripts: PageScripts) -> None:
    check_masks(scripts.run("memory", "on_device", case="masks", device=device))


@pytest.mark.one_in(2)
@device
def test_casts(device: str, scripts: PageScripts) -> None:
    check_conversions(scripts.run("memory", "on_device", case="conversions", device=device))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("device", "foreign"), [DEVICES, DEVICES[::-1]])
def test_refusals_leave_the_buffers_as_they_were(device: str, foreign: str, scripts: PageScripts) -> None:
    check_refusals(scripts.run("memory", "on_device", case="refusals", device=device, foreign=foreign))


def test_memory_infos_come_from_the_table(scripts: PageScripts) -> None:
    found = [scripts.run("memory", "on_device", case="infos", device=device) for device in DEVICES]
    assert found == [
        {
            "places": {"default": "WebGPU_Buffer", "host_accessible": "WebGPU_Staging"},
            "device": "webgpu",
            "provider": "webgpu",
        },
        {"places": {"default": "Cpu", "host_accessible": "Cpu"}, "device": "wasm", "provider": "wasm"},
    ]


@pytest.mark.extended
@pytest.mark.parametrize("device", DEVICES)
def test_the_providers_options_that_a_device_tells_are_those_that_sessions_get(
    device: str, scripts: PageScripts
) -> None:
    found = scripts.run("memory", "providers", "nano-llama", device=device, model="nano-llama")
    assert found["told"]["name"] == device
    assert len(found["given"]) > 1
    assert found["given"] == [[found["told"], device == "webgpu"]] * len(found["given"])


def test_the_probe_says_what_the_gpu_can_do(scripts: PageScripts) -> None:
    found = scripts.run("memory", "on_device", case="capabilities", device="webgpu")
    assert found["staging"], found["missing"]
    assert found["in_place_cache"], found["missing"]
    assert not found["mappable_storage"], "a mappable buffer cannot be storage"
    for name, reason in found["missing"].items():
        assert not found[name]
        assert reason
    assert found["same"], "an adapter is probed once"


def test_the_probe_says_what_the_cpu_can_do(scripts: PageScripts) -> None:
    found = scripts.run("memory", "on_device", case="capabilities", device="wasm")
    assert found["staging"], found["missing"]
    assert found["int64"], found["missing"]
    assert found["in_place_cache"], found["missing"]
    assert found["mappable_storage"]
    assert set(found["missing"]) >= {"subgroups", "timestamps"}


def test_where_past_and_present_must_be_apart_they_are_copied(scripts: PageScripts) -> None:
    found = scripts.run("memory", "apart_caches", "nano-llama", model="nano-llama", count=12)
    assert found["ids"] == oracle.greedy(LLAMA, [5, 6, 7, 8, 9], 12)
    assert found["notes"] == ["off: past and present of attention cannot be one buffer on this adapter"] * 2
    assert [text for text in found["warned"] if "the test says so" in text] == [
        "one buffer for past and present: the test says so; caches are written to separate buffers and "
        "copied after each step, which is neither captured nor taped"
    ], "warned once"
    assert found["counted"] == [2]


def test_an_adapter_that_cannot_be_read_is_refused(scripts: PageScripts) -> None:
    found = scripts.run("memory", "incapable", "nano-llama", model="nano-llama")
    assert found["error"] == (
        "DeviceUnavailableError: this adapter cannot read results back: the test says so; use device='wasm'"
    )
    assert found["left"].strip() == "0 bytes     0  in all"


AWAY = """
from pyodide.code import run_js

from capstan import Model

folder = models["nano-llama"]
async with await Model.load(folder, device="webgpu"):
    pass
run_js('''(() => {
  const { prototype } = GPU;
  const { requestAdapter } = prototype;
  let left = 3;
  prototype.requestAdapter = async function (...given) {
    if (left-- > 0) return null;
    prototype.requestAdapter = requestAdapter;
    return await requestAdapter.apply(this, given);
  };
})()''')
async with await Model.load(folder, device="webgpu") as model:
    print(model.healthy())
"""


def test_an_adapter_that_was_there_is_waited_for(harness: Harness) -> None:
    done = harness.exec(AWAY, ["nano-llama"])
    assert (done.status, done.stdout) == (0, "True\n"), done.stderr
