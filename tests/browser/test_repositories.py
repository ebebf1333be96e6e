"""Repositories in Transformers.js layout run in the page like the genai folders of the same weights."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capstan.graph import parse, serialize
from capstan.graph.onnx_pb2 import ModelProto
from capstan_host.site_server import SiteServer
from capstan_host.testing.harness import Harness
from tests import oracle
from tests.browser.model_variants import LLAMA, Variants, keeping_logits
from tests.browser.page_scripts import PageScripts
from tests.browser.test_cli import build_py
from tests.repository_layout import lay_out, with_positions

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROMPT = [5, 6, 7, 8, 9]
GONE = "404 (Not Found)"
"""The browser reports a missing file by itself: that genai_config.json is not there is how a repository is known."""


def with_positions_and_kept_logits(model: ModelProto) -> None:
    with_positions(model)
    keeping_logits(model)


def larger(model: ModelProto) -> None:
    """The same in a file that is read in pieces."""
    model.doc_string = "x" * 1_500_000


SHAPES: dict[str, dict[str, Any]] = {
    "nano-llama": {},
    "nano-qwen3": {"parts": 3, "config": {"bos_token_id": None}},
    "nano-shape": {"parts": 1, "change": with_positions_and_kept_logits},
    "nano-mixed": {"parts": 0},
    "nano-blocks": {"parts": 0, "change": larger},
}
"""By the fixture, how it is laid out; 0 parts are weights inside the graph's file."""


@pytest.fixture(scope="module")
def repositories(site: SiteServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Fixtures as repositories, mounted as repo-NAME."""
    place = tmp_path_factory.mktemp("repositories")
    made = {name: lay_out(FIXTURES / name, place / f"repo-{name}", **options) for name, options in SHAPES.items()}
    site.models.update({folder.name: folder for folder in made.values()})
    return made


@pytest.mark.one_in
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
@pytest.mark.parametrize("name", SHAPES)
def test_ids_are_those_of_the_genai_folder(
    name: str, device: str, repositories: dict[str, Path], harness: Harness, scripts: PageScripts
) -> None:
    scripts.expect(GONE)
    found = harness.generate(repositories[name].name, prompt_ids=PROMPT, max_new_tokens=24, device=device)
    assert found["token_ids"] == oracle.greedy(FIXTURES / name, PROMPT, 24)
    if device == "webgpu":
        assert (found["capture"], found["capture_note"]) == ("tape", None)


PICKED = """async ([url, names, request]) => {
  const root = await navigator.storage.getDirectory();
  const folder = await root.getDirectoryHandle("picked-repository", { create: true });
  for (const name of names) {
    const parts = name.split("/");
    let place = folder;
    for (const part of parts.slice(0, -1)) place = await place.getDirectoryHandle(part, { create: true });
    const file = await place.getFileHandle(parts.at(-1), { create: true });
    const writable = await file.createWritable();
    await writable.write(await (await fetch(url + name)).arrayBuffer());
    await writable.close();
  }
  const reply = await window.capstan.request({ ...request, model: folder });
  await root.removeEntry("picked-repository", { recursive: true });
  return reply;
}"""


@pytest.mark.extended
def test_a_picked_folder_may_be_one(repositories: dict[str, Path], harness: Harness, scripts: PageScripts) -> None:
    folder = repositories["nano-llama"]
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    request = {
        "kind": "generate",
        "dtype": None,
        "device": "wasm",
        "capture": "tape",
        "run_ahead": None,
        "prompt": None,
        "prompt_ids": PROMPT,
        "max_new_tokens": 12,
        "search": {"do_sample": False},
    }
    reply = harness.evaluate(PICKED, [f"/models/{folder.name}/", names, request])
    assert reply["ok"], reply
    assert reply["result"]["token_ids"] == oracle.greedy(LLAMA, PROMPT, 12)


PLAN = """
import json, capstan
fits = [await capstan.plan(url, device="webgpu", max_length=256) for url in models.values()]
print(json.dumps([fit.requirements.weights.bytes for fit in fits]))
"""


def test_a_plan_is_made_before_any_weights_are_read(
    repositories: dict[str, Path], harness: Harness, scripts: PageScripts
) -> None:
    scripts.expect(GONE)
    done = harness.exec(PLAN, ["nano-llama", repositories["nano-llama"].name])
    plain, laid_out = json.loads(done.stdout)
    assert plain == laid_out > 200_000


def test_the_weights_are_kept_under_their_own_addresses(
    repositories: dict[str, Path], harness: Harness, scripts: PageScripts
) -> None:
    scripts.expect(GONE)
    folder = repositories["nano-qwen3"].name
    harness.generate(folder, prompt_ids=PROMPT, max_new_tokens=1, device="webgpu")
    reply = harness.reply({"kind": "models", "action": "list", "which": None})
    sources = {source for file in reply["result"]["files"] for source in file["sources"]}
    parts = ["model_q4.onnx_data", "model_q4.onnx_data_1", "model_q4.onnx_data_2"]
    assert [any(source.endswith(f"/{folder}/onnx/{part}") for source in sources) for part in parts] == [True] * 3


def test_a_dtype_that_is_not_there_is_refused_with_those_that_are(
    repositories: dict[str, Path], harness: Harness, scripts: PageScripts
) -> None:
    scripts.expect(GONE)
    error = harness.error(repositories["nano-llama"].name, prompt_ids=PROMPT, dtype="q4f16", device="wasm")
    assert error.type == "ModelFileError"
    assert error.message.endswith("model_q4f16.onnx does not exist; dtype='q4f16' was requested; the dtypes are q4")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_a_part_that_is_shorter_than_the_graph_says_is_refused(
    device: str, site: SiteServer, harness: Harness, scripts: PageScripts, tmp_path: Path
) -> None:
    scripts.expect(GONE)
    folder = lay_out(LLAMA, tmp_path / f"short-{device}")
    part = folder / "onnx" / "model_q4.onnx_data_1"
    part.write_bytes(part.read_bytes()[:-100])
    site.models[folder.name] = folder
    error = harness.error(folder.name, prompt_ids=PROMPT, device=device)
    assert error.type == "ModelFileError"
    assert f"/{folder.name}/onnx/model_q4.onnx_data_1: " in error.message
    assert "copy the file" in error.message


@pytest.mark.extended
def test_run_takes_a_repository(repositories: dict[str, Path]) -> None:
    folder = str(repositories["nano-llama"])
    asked = ("--prompt-ids", "5,6,7,8,9", "--device", "webgpu")
    done = build_py("run", *asked, "--model", folder, "--dtype", "q4", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["token_ids"][:24] == oracle.greedy(LLAMA, PROMPT, 24)
    assert result["capture"] == "tape"
    told = done.stderr.splitlines()
    size = next(index for index, line in enumerate(told) if re.fullmatch(r"the weights have 0\.\d MB", line))
    assert "onnx_data: " in "".join(told[size:])
    assert "onnx_data: " not in "".join(told[:size])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_inputs_may_have_any_names(device: str, variants: Variants, harness: Harness, scripts: PageScripts) -> None:
    names = {"input_ids": "ids", "attention_mask": "valid", "logits": "scores"}

    def rename(model: ModelProto) -> None:
        for value in [*model.graph.input, *model.graph.output]:
            value.name = names.get(value.name, value.name)
        for node in model.graph.node:
            for places in (node.input, node.output):
                for place, name in enumerate(places):
                    places[place] = names.get(name, name)

    model = variants.graph(f"renamed-{device}", rename)
    path = variants.place / model / "genai_config.json"
    tree = json.loads(path.read_text())
    decoder = tree["model"]["decoder"]
    decoder["inputs"] |= {"input_ids": "ids", "attention_mask": "valid"}
    decoder["outputs"]["logits"] = "scores"
    path.write_text(json.dumps(tree))
    found = harness.generate(model, prompt_ids=PROMPT, max_new_tokens=12, device=device)
    assert found["token_ids"] == oracle.greedy(LLAMA, PROMPT, 12)


STORED = """
import json, capstan

[url] = models.values()
model = await capstan.Model.load(url, device="webgpu")
await model.aclose()
found = [[file.size, file.complete] for file in await capstan.WeightStore().list() if file.called(url)]
print(json.dumps([found, await capstan.WeightStore().evict(url)]))
"""


def test_a_file_with_graph_and_weights_is_stored_once_and_evicted_with_its_graph(
    repositories: dict[str, Path], harness: Harness, scripts: PageScripts
) -> None:
    scripts.expect(GONE)
    folder = repositories["nano-blocks"]
    done = harness.exec(STORED, [folder.name])
    assert (done.status, done.stderr) == (0, "")
    size = (folder / "onnx" / "model_q4.onnx").stat().st_size
    found, freed = json.loads(done.stdout)
    assert found == [[size, True]]
    assert freed > size + 10_000, "the graph without weights is kept apart"


@pytest.fixture(scope="module")
def optimum(site: SiteServer) -> str:
    """nano-float's weights as Optimum exports them: attention in primitive operations, caches that grow."""
    folder = FIXTURES / "repositories" / "nano-optimum"
    site.models[folder.name] = folder
    return folder.name


@pytest.mark.extended
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_a_plain_optimum_export_is_captured_and_picks_what_the_genai_export_does(
    device: str, optimum: str, harness: Harness, scripts: PageScripts
) -> None:
    scripts.expect(GONE)
    for prompt in (PROMPT, [(31 * i + 7) % 509 for i in range(150)]):
        found = harness.generate(optimum, prompt_ids=prompt, max_new_tokens=32, device=device)
        assert found["token_ids"] == oracle.greedy(FIXTURES / "nano-float", prompt, 32)
        if device == "webgpu":
            assert (found["capture"], found["capture_note"]) == ("tape", None)
            assert "left out" not in found["tape_passes"], found["tape_passes"]
            assert "became 12, 1 of them as recorded" in found["tape_passes"]["fused"]


def with_magnitudes(model: ModelProto) -> None:
    """The same values: weights of attention are no less than 0. Attention over them is not recognised."""
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    index = list(model.graph.node).index(softmax)
    softmax.output[0], made = "before_magnitude", softmax.output[0]
    node = ModelProto().graph.node.add(op_type="Abs", name="/magnitude", input=["before_magnitude"], output=[made])
    model.graph.node.insert(index + 1, node)


GROWING = """
import json, sys
import capstan
from capstan.fallback import fallbacks

[url] = models.values()
device, ids = json.loads(sys.argv[1])
before = fallbacks()
model = await capstan.Model.load(url, device=device)
counted = {what: count - before.get(what, 0) for what, count in fallbacks().items()}
params = capstan.GeneratorParams(model)
params.set_search_options(do_sample=False, max_length=200)
found = []
async with capstan.Generator(model, params) as generator:
    for length in (0, 9, 6, 0):
        generator.rewind_to(length)
        generator.append_tokens(ids[length:12])
        for _ in range(6):
            await generator.generate_next_token_async()
        found.append(list(generator.get_sequence()))
    told = [generator.capture, generator.capture_note]
    # Another prompt, in two runs over caches that there are already.
    generator.rewind_to(4)
    generator.append_tokens([(31 * i + 7) % 509 for i in range(100)])
    await generator.generate_next_token_async()
    long = list(generator.get_sequence())
await model.aclose()
print(json.dumps([found, told, counted, long]))
"""


@pytest.mark.extended
@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_attention_that_is_not_recognised_runs_eagerly_over_caches_that_grow(
    device: str, site: SiteServer, harness: Harness, scripts: PageScripts, tmp_path: Path
) -> None:
    scripts.expect(GONE)
    folder = copied(FIXTURES / "repositories" / "nano-optimum", tmp_path / f"growing-{device}", with_magnitudes)
    site.models[folder.name] = folder
    oracle_folder = FIXTURES / "nano-float"
    ids = [*PROMPT, *oracle.greedy(oracle_folder, PROMPT, 24)]
    done = harness.exec(GROWING, [folder.name], [json.dumps([device, ids[:12]])])
    assert done.status == 0, done.stderr
    found, (capture, note), counted, long = json.loads(done.stdout)
    assert found == [ids[:18]] * 4
    assert long[104] == oracle.greedy(oracle_folder, long[:104], 1)[0]
    why = "node /magnitude (Abs): where Softmax is expected"
    assert capture == "off"
    assert device == "wasm" or note == f"the graph cannot be captured: {why}"
    (told,) = [text for text, count in counted.items() if "caches" in text and count == 1]
    assert why in told


def copied(source: Path, target: Path, change: Callable[[ModelProto], None]) -> Path:
    """A repository with its graph changed."""
    shutil.copytree(source, target)
    path = target / "onnx" / "model.onnx"
    model = parse(path.read_bytes())
    change(model)
    path.write_bytes(serialize(model))
    return target


KNOWN = """
import capstan
about = {"family": "llama", "context_length": 512, "cache_bytes_per_token": 64, "licence": "MIT"}
search = {"do_sample": True, "temperature": 5.0, "random_seed": 3}
capstan.models.append(
    capstan.KnownModel("me/mine", "q4", 3, needs_f16=False, tried=True, name="repo-known", search=search, **about)
)
"""


def test_a_known_model_is_sampled_as_is_recommended_and_called_by_its_name_where_nobody_says(
    site: SiteServer, harness: Harness, scripts: PageScripts, tmp_path: Path
) -> None:
    scripts.expect(GONE)
    folder = lay_out(LLAMA, tmp_path / "repo-known")
    site.models[folder.name] = folder
    ask: dict[str, Any] = {"prompt_ids": PROMPT, "max_new_tokens": 12, "device": "wasm"}
    greedy = harness.generate(folder.name, **ask)["token_ids"]
    assert harness.generate(folder.name, **ask, search={})["token_ids"] == greedy == oracle.greedy(LLAMA, PROMPT, 12)
    harness.exec(KNOWN)
    # Another model, so that this one is loaded again.
    harness.generate("nano-llama", prompt_ids=PROMPT, max_new_tokens=1, device="wasm")
    by_itself = harness.generate(folder.name, **ask, search={})
    assert by_itself["model"].startswith("repo-known, 0.")
    assert by_itself["model"].endswith("MB, MIT")
    assert f"loading {by_itself['model']}" in [each["text"] for each in harness.events if each["kind"] == "status"]
    asked = {"do_sample": True, "temperature": 5.0, "random_seed": 3}
    assert by_itself["token_ids"] == harness.generate(folder.name, **ask, search=asked)["token_ids"] != greedy
    assert harness.generate(folder.name, **ask, search={"do_sample": False})["token_ids"] == greedy
    harness.exec("import capstan; capstan.models.pop()")


def test_a_text_that_is_continued_begins_with_bos(harness: Harness) -> None:
    """nano-llama's post-processor puts it there; the judge is the Rust tokenizer."""
    ids = oracle.prompt(LLAMA, "def f(n):")
    assert ids[0] == 0
    ask: dict[str, Any] = {"max_new_tokens": 4, "device": "wasm"}
    for text in ("def f(n):", "<s>def f(n):"):
        found = harness.generate("nano-llama", **ask, prompt=text)
        assert found["prompt_ids"] == ids
        assert found["token_ids"] == oracle.greedy(LLAMA, ids, 4)
