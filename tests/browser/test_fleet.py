"""A fleet on a Dask worker of this process: its ids are onnxruntime-genai's, a killed browser is replaced, and scores,
embeddings and scripts come through the same pages."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
import tokenizers
from distributed import Client, LocalCluster

from capstan_host.fleet import Fleet
from capstan_host.site_server import SiteServer
from tests import oracle

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA = FIXTURES / "nano-llama"
PROMPTS = [[(31 * row + 7 * place) % 500 + 1 for place in range(2 + row % 5)] for row in range(12)]
GREEDY: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
SCRIPT = """
import capstan
model = await capstan.Model.load(models["model"])
async def run(item):
    return [model.type, len(capstan.Tokenizer(model).encode(item["text"]))]
"""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def kill_browser(before: set[int]) -> None:
    """Kill the browser that this process started since, as the machine would that has no memory left."""
    for process in psutil.Process(os.getpid()).children(recursive=True):
        command = process.cmdline()
        if process.pid not in before and "--headless=new" in command and not any("--type=" in each for each in command):
            process.kill()
            return
    raise AssertionError("no browser is there")


@pytest.mark.one_in
@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_ids_are_the_oracles_and_a_killed_browser_is_replaced(
    device: Literal["wasm", "webgpu"], site: SiteServer, client: Client, tmp_path: Path
) -> None:
    out = tmp_path / "results.jsonl"
    before = {process.pid for process in psutil.Process(os.getpid()).children(recursive=True)}
    with Fleet(client, LLAMA, site=site.root, rows=4, max_length=32, device=device, capture="off") as fleet:
        given = [*PROMPTS[:6], [10**6], *PROMPTS[6:]]
        found = []
        for item in fleet.generate(given, out=out, batch=4, **GREEDY):
            found.append(item)
            if len(found) == 1:
                kill_browser(before)
        cluster: Any = client.cluster
        worker = next(iter(cluster.workers.values()))
        assert worker.plugins[fleet._dispatcher.name].browsers.replaced >= 1
        poison = found.pop(6)
        assert poison.error is not None
        assert (poison.error.type, poison.attempt) == ("PromptError", 3)
        assert [item.token_ids for item in found] == [oracle.greedy(LLAMA, each, 6) for each in PROMPTS]
        assert {item.finish_reason for item in found} == {"length"}
        assert len(out.read_text().splitlines()) == len(given)
        assert [item.id for item in fleet.generate(given, out=out, batch=4, **GREEDY)] == ["6"]

        [scored] = fleet.loglikelihood([{"context_ids": PROMPTS[0], "token_ids": found[0].token_ids}])
        assert scored.value["greedy"] is True
        assert scored.value["log_probability"] == pytest.approx(sum(scored.value["log_probabilities"]))
        kinds = list(fleet.map(SCRIPT, [{"text": "a"}, {"text": "a b c d"}]))
        assert [item.value[0] for item in kinds] == ["llama", "llama"]
        assert kinds[0].value[1] < kinds[1].value[1]

        odd = list(fleet.generate([{"id": "\ud800", "prompt": "a\ud800b"}, "a\0b", {"prompt": 5}], out=out, **GREEDY))
        assert [item.id for item in odd] == ["\ud800", "1", "2"]
        assert [(item.text is None) == (item.error is not None) for item in odd] == [True] * 3
        made = 'def run(x):\n    print("no end", end="")\n    return eval(x)\n'
        values = list(fleet.map(made, ["1", "float('nan')", "'\\ud800'", "[[]] * 2"]))
        assert [item.value for item in values] == [1, None, "\ud800", [[], []]]
        assert [item.error is None for item in values] == [True, False, True, True]


TEMPLATE = """{% if tools %}<|im_start|>tools
{{ tools[0].function.name }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"""


def test_conversations_are_answered_by_the_models_template_with_tools_and_without_thinking(
    site: SiteServer, client: Client, tmp_path: Path
) -> None:
    qwen = Path(shutil.copytree(FIXTURES / "nano-qwen2", tmp_path / "qwen"))
    settings = json.loads((qwen / "tokenizer_config.json").read_text())
    (qwen / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    words = tokenizers.Tokenizer.from_file(str(qwen / "tokenizer.json"))
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    talks = [[{"role": "user", "content": text}] for text in ("def f(", "import os")]
    with Fleet(client, qwen, site=site.root, rows=2, max_length=128, capture="off") as fleet:
        found = list(fleet.chat(talks, tools=[tool], thinking=False, **GREEDY))
    for item, [message] in zip(found, talks, strict=True):
        text = f"<|im_start|>tools\nweather<|im_end|>\n<|im_start|>user\n{message['content']}<|im_end|>\n"
        ids = words.encode(text + "<|im_start|>assistant\n<think></think>", add_special_tokens=False).ids
        assert (item.error, item.prompt_tokens) == (None, len(ids))
        assert item.token_ids == oracle.greedy(qwen, ids, 6)
        assert item.value == {"reasoning": "", "answer": item.text, "tool_calls": []}


@pytest.mark.extended
def test_sampled_ids_with_a_seed_are_those_of_an_item_alone_and_texts_are_embedded(
    site: SiteServer, client: Client
) -> None:
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": True, "random_seed": 3, "temperature": 1.5}
    with Fleet(client, LLAMA, site=site.root, max_length=32, capture="off") as fleet:
        together = list(fleet.generate(PROMPTS[:4], **options))
        alone = [next(iter(fleet.generate([each], **options))) for each in PROMPTS[:4]]
        assert [item.token_ids for item in together] == [item.token_ids for item in alone]
    encoder = next(iter(sorted((FIXTURES / "encoders").glob("*/config.json")))).parent
    with Fleet(client, encoder, site=site.root) as fleet:
        one, same = fleet.embed(["hello there", {"id": "b", "text": "hello there"}])
        assert one.value == same.value
        assert sum(each * each for each in one.value) == pytest.approx(1, abs=1e-4)
