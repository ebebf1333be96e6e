"""Loading a model folder: what is read and refused in which order, over a host made of paper."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import capstan.model
from capstan import (
    AsyncRequiredError,
    ClosedError,
    ConfigError,
    GeneratorParams,
    Model,
    ModelFileError,
    OptionError,
    Tokenizer,
    UnsupportedModelError,
)
from capstan.device.device_host import Opening
from capstan.device.model_interface import TapeOptions
from capstan.genai.changed_config import Config
from capstan.guidance import TokenBytes
from capstan.local.numpy_token_walks import LocalTokenWalks
from capstan.local.rust_tokenizer import LocalBackend
from capstan.tape import PASSES
from tests.unit.paper_model import PaperHost

LLAMA = Path(__file__).parents[1] / "fixtures" / "nano-llama"
CONTEXT = 512


class PaperDevice:
    """A DeviceModel that records its calls."""

    device = "paper"
    adapter = "a sheet"
    encoder = None

    def __init__(self) -> None:
        self.capacities: list[int] = []
        self.closed = 0
        self.works = True
        self.memory = SimpleNamespace(context_length=CONTEXT, description=SimpleNamespace(rope=None))

    async def decoder(self, capacity: int, pools: object = None) -> str:
        self.capacities.append(capacity)
        return f"decoder of {capacity}"

    def healthy(self) -> bool:
        return self.works

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


class FileHost(PaperHost):
    """A Host over a dictionary of files."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        self.files = files
        self.longest = CONTEXT
        """Positions that the graph allows."""
        self.read_names: list[str] = []
        self.opened: list[tuple[str, str, TapeOptions]] = []
        self.loaded = PaperDevice()
        self.tokenizers = 0
        """Tokenizers that were made."""

    def gguf_place(self, path: str) -> tuple[str, str] | None:
        return None

    async def listing(self, folder: str) -> dict[str, int | None] | None:
        return None

    def tokenizer_backend(self, tokenizer_json: str, tokenizer_config_json: str) -> LocalBackend:
        self.tokenizers += 1
        return LocalBackend(tokenizer_json, tokenizer_config_json)

    def token_walks(self, tokens: TokenBytes) -> LocalTokenWalks:
        return LocalTokenWalks(tokens)

    async def read(
        self, folder: str, name: str, most: int = 0, progress: Callable[[int, int], None] | None = None
    ) -> bytes:
        self.read_names.append(folder + name)
        if name not in self.files:
            raise ModelFileError(f"{folder}{name} cannot be read (HTTP 404); check the model folder")
        return self.files[name]

    async def read_optional(self, folder: str, name: str) -> bytes | None:
        self.read_names.append(folder + name)
        return self.files.get(name)

    async def adopt(self, path: Any, keep: bool) -> str:
        folder = str(path)
        return folder if folder.endswith("/") else folder + "/"

    async def open_model(self, opening: Opening, device: str) -> PaperDevice:
        self.kept = opening.keep_weights
        self.opened.append((opening.folder, device, opening.options))
        opening.progress("weights", 1, 2)
        await asyncio.sleep(0)  # while the weights come
        self.loaded.memory.context_length = min(opening.config.context_length, self.longest)
        return self.loaded


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> FileHost:
    names = ("genai_config.json", "tokenizer.json", "tokenizer_config.json")
    paper = FileHost({name: (LLAMA / name).read_bytes() for name in names})
    monkeypatch.setattr(capstan.model, "current_device_host", lambda: paper)
    return paper


def load(**options: Any) -> Model:
    return asyncio.run(Model.load("/models/nano", **options))


def change(host: FileHost, **fields: Any) -> None:
    """Set fields of genai_config.json's sections, as search={...}."""
    tree = json.loads(host.files["genai_config.json"])
    for section, values in fields.items():
        tree[section].update(values)
    host.files["genai_config.json"] = json.dumps(tree).encode()


OPTIONS = "model.decoder.session_options.provider_options"


def set_capture(host: FileHost, **options: str) -> None:
    """Give WebGPU these options in genai_config.json."""
    tree = json.loads(host.files["genai_config.json"])
    tree["model"]["decoder"]["session_options"]["provider_options"] = [{"webgpu": options}]
    host.files["genai_config.json"] = json.dumps(tree).encode()


@pytest.mark.parametrize("path", [3, None, ["a.onnx"]])
def test_on_cpython_a_model_is_a_directory(path: Any) -> None:
    with pytest.raises(OptionError, match=r"^a model's path is .*; it must be the path of a directory$"):
        asyncio.run(Model.load(path, device="reference"))


class TestLoading:
    def test_a_folder_is_a_url_that_ends_in_a_slash(self, host: FileHost) -> None:
        assert load().folder == "/models/nano/"
        assert asyncio.run(Model.load("/models/nano/")).folder == "/models/nano/"
        read = [name for name in host.read_names if name.endswith("genai_config.json")]
        assert read == ["/models/nano/genai_config.json"] * 2

    def test_the_default_is_auto_with_a_tape(self, host: FileHost) -> None:
        set_capture(host)
        load()
        assert host.opened == [("/models/nano/", "auto", TapeOptions("tape", None))]

    def test_the_configuration_says_whether_to_capture_where_the_caller_does_not(self, host: FileHost) -> None:
        where = f"/models/nano/genai_config.json: {OPTIONS}[0].webgpu.enableGraphCapture"
        for value, capture in {"0": "off", "1": "tape"}.items():
            set_capture(host, enableGraphCapture=value)
            load()
            assert host.opened.pop()[2] == TapeOptions(capture, configured=where)

    @pytest.mark.parametrize("capture", ["tape", "ort", "off"])
    def test_the_caller_wins_over_the_configuration(self, capture: str, host: FileHost) -> None:
        for value in ("0", "1"):
            set_capture(host, enableGraphCapture=value)
            load(capture=capture)
            Model("/models/nano", capture=capture)
            assert [options for _, _, options in host.opened] == [TapeOptions(capture)] * 2
            host.opened.clear()

    def test_an_overlay_adds_to_the_options_of_providers(self, host: FileHost) -> None:
        set_capture(host, enableGraphCapture="1", multiRotaryCacheConcatOffset="256")
        options = {"provider_options": [{"WebGPU": {"enableGraphCapture": "0"}}]}
        model = load(overlay={"model": {"decoder": {"session_options": options}}})
        ((_, _, found),) = host.opened
        assert (found.capture, model.config.decoder.long_rope_from) == ("off", 256)
        assert found.configured is not None
        assert found.configured.endswith("[1].WebGPU.enableGraphCapture")

    def test_options_reach_the_device_and_progress_comes_back(self, host: FileHost) -> None:
        told: list[tuple[str, int, int]] = []
        load(device="webgpu", capture="ort", passes=["dead", "clears"], progress=lambda *what: told.append(what))
        assert host.opened == [("/models/nano/", "webgpu", TapeOptions("ort", ("clears", "dead")))]
        assert told == [("weights", 1, 2)]

    def test_the_tokenizer_is_made_while_the_weights_come(self, host: FileHost) -> None:
        model = load()
        assert host.tokenizers == 1
        assert Tokenizer(model).encode("a")
        assert host.tokenizers == 1

    def test_who_asks_for_a_tokenizer_that_cannot_be_made_hears_why(self, host: FileHost) -> None:
        host.files["tokenizer.json"] = b'{"model": {"type": "BPE", "vocab": 7}}'
        model = load()
        with pytest.raises(ConfigError, match=r"tokenizer\.json: its BPE tokenizer cannot be built"):
            Tokenizer(model)

    @pytest.mark.parametrize("kind", [list, tuple, set, frozenset, dict.fromkeys])
    def test_passes_are_any_collection_in_any_order(self, kind: Callable[[list[str]], Any], host: FileHost) -> None:
        for names in (["dead", "matvec", "clears"], ["clears", "matvec", "dead", "matvec"]):
            load(passes=kind(names))
        load(passes=kind(list(PASSES[::-1])))
        load(passes=kind([]))
        given = [options.passes for _, _, options in host.opened]
        assert given == [("clears", "matvec", "dead")] * 2 + [PASSES, ()]

    def test_what_the_folder_says_is_known(self, host: FileHost) -> None:
        model = load()
        assert (model.type, model.device_type, model.adapter) == ("llama", "paper", "a sheet")
        assert model.config.context_length == CONTEXT
        assert model.search.eos_token_ids == (1,)
        assert model.search.pad_token_id == 2
        assert GeneratorParams(model).search == model.search
        assert set(model.tokenizer_files) == {"tokenizer.json", "tokenizer_config.json"}

    def test_blocking_is_the_same(self, host: FileHost) -> None:
        with_constructor = Model("/models/nano", device="wasm", capture="off")
        assert with_constructor.type == "llama"
        assert host.opened == [("/models/nano/", "wasm", TapeOptions("off", None))]

    def test_blocking_where_nothing_can_wait_names_the_async_twin(self, host: FileHost) -> None:
        host.waits = False
        with pytest.raises(AsyncRequiredError, match=r"use `await Model\.load\('/models/nano'\)`"):
            Model("/models/nano")
        assert host.read_names == [], "nothing was begun"


class TestRefusing:
    def test_an_unknown_capture_lists_the_choices(self, host: FileHost) -> None:
        with pytest.raises(OptionError, match="capture is 'video'; it must be one of 'tape', 'ort', 'off'"):
            load(capture="video")
        assert host.read_names == [], "nothing was fetched"

    def test_another_value_for_capture_is_refused_before_anything_is_loaded(self, host: FileHost) -> None:
        set_capture(host, enableGraphCapture="yes")
        with pytest.raises(ConfigError, match=r"\.enableGraphCapture: expected \"0\" or \"1\", got \"yes\""):
            load(capture="tape")
        assert host.opened == []

    @pytest.mark.parametrize(
        ("passes", "found"),
        [
            (["clears", "fusion"], r"\['clears', 'fusion'\]"),
            (("Dead",), r"\('Dead',\)"),
            ({""}, r"\{''\}"),
        ],
    )
    def test_unknown_passes_list_the_names_there_are(self, passes: Any, found: str, host: FileHost) -> None:
        names = "clears, direct, matvec, gated, norm, residual, attention, states, dead, prefill, rows, prompts"
        with pytest.raises(OptionError, match=f"^passes is {found}; it must be a collection of names out of {names}, "):
            load(passes=passes)
        with pytest.raises(OptionError, match=f"out of {names}, or None$"):
            Model("/models/nano", passes=passes)
        assert host.read_names == [], "nothing was fetched"

    @pytest.mark.parametrize("name", ["genai_config.json", "tokenizer.json"])
    def test_a_missing_file_is_named(self, name: str, host: FileHost) -> None:
        del host.files[name]
        with pytest.raises(ModelFileError, match=f"/models/nano/{name}"):
            load()

    @pytest.mark.parametrize("name", ["genai_config.json", "tokenizer.json", "tokenizer_config.json"])
    def test_a_byte_that_is_not_utf_8_is_told_with_its_place(self, name: str, host: FileHost) -> None:
        data = host.files[name]
        host.files[name] = data[:9] + b"\xd5" + data[9:]
        with pytest.raises(ConfigError, match=rf"{name}: byte 9 is not UTF-8"):
            load()

    def test_a_missing_tokenizer_config_is_allowed(self, host: FileHost) -> None:
        del host.files["tokenizer_config.json"]
        assert set(load().tokenizer_files) == {"tokenizer.json"}

    def test_a_file_that_is_not_json_is_named_with_line_and_column(self, host: FileHost) -> None:
        host.files["genai_config.json"] = b"{\n  nonsense}"
        with pytest.raises(ConfigError, match=r"/models/nano/genai_config\.json: line 2, column 3: not JSON"):
            load()

    def test_a_wrong_search_option_is_found_before_the_weights_are_fetched(self, host: FileHost) -> None:
        change(host, search={"top_p": 7})
        with pytest.raises(OptionError, match="top_p is 7"):
            load()
        assert host.opened == []

    def test_too_many_ends_of_a_sequence_are_found_before_the_weights_are_fetched(self, host: FileHost) -> None:
        change(host, model={"eos_token_id": list(range(3, 1028)), "vocab_size": 5000})
        with pytest.raises(OptionError, match="there are 1025 eos_token_ids; at most 1024"):
            load()
        assert host.opened == []

    def test_files_that_are_not_wanted_any_more_are_not_complained_of(
        self, host: FileHost, caplog: pytest.LogCaptureFixture
    ) -> None:
        # Warnings about objects that other tests left open come now.
        gc.collect()
        caplog.clear()
        del host.files["genai_config.json"]
        with pytest.raises(ModelFileError):
            load()
        gc.collect()
        assert caplog.messages == []

    def test_an_unsupported_type_is_found_before_the_weights_are_fetched(self, host: FileHost) -> None:
        change(host, model={"type": "parakeet_tdt"})
        with pytest.raises(UnsupportedModelError, match='"parakeet_tdt" has an encoder'):
            load()
        assert host.opened == []


class TestDecoders:
    @pytest.mark.parametrize(("max_length", "capacity"), [(1, 256), (256, 256), (257, 512), (500, 512), (512, 512)])
    def test_capacities_are_steps_of_256_up_to_the_context(
        self, max_length: int, capacity: int, host: FileHost
    ) -> None:
        asyncio.run(load().decoder(max_length))
        assert host.loaded.capacities == [capacity]

    def test_a_context_that_is_no_multiple_is_the_most(self, host: FileHost) -> None:
        change(host, model={"context_length": 300}, search={"max_length": 300})
        asyncio.run(load().decoder(290))
        assert host.loaded.capacities == [300]


class TestClosing:
    def test_frees_the_device_once(self, host: FileHost) -> None:
        model = load()
        assert model.healthy()
        model.close()
        asyncio.run(model.aclose())
        assert host.loaded.closed == 1
        assert not model.healthy()

    def test_one_that_is_dropped_frees_the_device(self, host: FileHost) -> None:
        model = Model("m")
        assert host.loaded.closed == 0
        del model
        gc.collect()
        assert host.loaded.closed == 1

    def test_one_that_is_closed_and_dropped_frees_it_once(self, host: FileHost) -> None:
        model = Model("m")
        model.close()
        del model
        gc.collect()
        assert host.loaded.closed == 1

    def test_goes_on_when_the_wait_for_it_is_cancelled(self, host: FileHost) -> None:
        model = load()

        async def run() -> None:
            closing = asyncio.ensure_future(model.aclose())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            for _ in range(3):
                await asyncio.sleep(0)

        asyncio.run(run())
        assert host.loaded.closed == 1

    def test_makes_every_use_fail(self, host: FileHost) -> None:
        model = load()
        model.close()
        with pytest.raises(ClosedError, match="the model /models/nano/ was closed; load it again"):
            asyncio.run(model.decoder(10))
        with pytest.raises(ClosedError):
            _ = model.adapter

    def test_an_async_block_closes(self, host: FileHost) -> None:
        async def run() -> None:
            async with await Model.load("/models/nano"):
                raise KeyError

        with pytest.raises(KeyError):
            asyncio.run(run())
        assert host.loaded.closed == 1

    def test_where_nothing_can_wait_names_the_async_twin(self, host: FileHost) -> None:
        model = load()
        host.waits = False
        with pytest.raises(AsyncRequiredError, match=r"use `await model\.aclose\(\)`"):
            model.close()
        assert model.healthy()

    def test_a_sick_device_is_told(self, host: FileHost) -> None:
        model = load()
        host.loaded.works = False
        assert not model.healthy()


STORE = "disable_file_mapped_weights"


@pytest.mark.parametrize(
    "session_options",
    [
        {f"session.{STORE}": "1"},
        {"provider_options": [{"webgpu": {STORE: "1"}}]},
        {"provider_options": [{"cpu": {STORE: "1"}}]},
    ],
)
def test_a_configuration_may_leave_the_weight_store_out(host: FileHost, session_options: dict[str, Any]) -> None:
    load()
    assert host.kept
    load(overlay={"model": {"decoder": {"session_options": session_options}}})
    assert not host.kept
    tree = json.loads(host.files["genai_config.json"])
    tree["model"]["decoder"]["session_options"] = session_options
    host.files["genai_config.json"] = json.dumps(tree).encode()
    load()
    assert not host.kept


@pytest.mark.parametrize("provider", ["webgpu", "WebGpuExecutionProvider", "cpu"])
@pytest.mark.parametrize(("value", "kept"), [("1", False), ("0", True)])
def test_a_provider_option_of_genai_leaves_the_weight_store_out(
    host: FileHost, provider: str, value: str, kept: bool
) -> None:
    config = Config("/models/nano")
    config.set_provider_option(provider, STORE, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(overlay=config.choice()["overlay"])
    assert host.kept == kept


@pytest.mark.parametrize("value", ["yes", "true", 1, True, None])
def test_another_value_for_the_weight_store_is_refused(host: FileHost, value: Any) -> None:
    overlay = {"model": {"decoder": {"session_options": {"provider_options": [{"webgpu": {STORE: value}}]}}}}
    with pytest.raises(ConfigError, match=rf'webgpu\.{STORE}: expected "0" or "1", got .*set it to one of these'):
        load(overlay=overlay)
