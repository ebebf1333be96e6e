"""A session that was saved continues after a reload without its prompt being computed again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from buildtools.site import assemble
from capstan import Generator, GeneratorParams, Model, Tokenizer
from capstan_host.digests import SHARD_SIZE, write_digests
from capstan_host.headless.static_server import running
from capstan_host.site_server import SiteServer
from tests import oracle
from tests.browser.test_picture_chats import PNG, data_url
from tests.lora_models import LORA
from tests.unit.test_picture_chats import TEMPLATE

FIXTURES = Path(__file__).parents[1] / "fixtures"
SYSTEM = {"role": "system", "content": "answer in a few words and name the places of which you know something"}
SET_UP = """async () => {
  const { Capstan } = await import("/capstan/capstan.js");
  window.load = (name, options) => Capstan.load(`/models/${name}/`, options);
  window.failure = (work) => work.then(() => null, ({ code, message }) => [code, message]);
  window.ids = async (run) => { const { tokenIds, keptTokens } = await run.result; return [tokenIds, keptTokens]; };
  window.files = async (end) => {
    const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("capstan-sessions");
    const found = [];
    for await (const [name, handle] of folder.entries()) if (name.endsWith(end)) found.push([folder, name, handle]);
    return found;
  };
  window.rewrite = async (end, change) => {
    const [[folder, name, handle]] = await files(end);
    const before = new Uint8Array(await (await handle.getFile()).arrayBuffer());
    const stream = await handle.createWritable();
    await stream.write(change(before.slice()));
    await stream.close();
  };
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    sees = tmp_path_factory.mktemp("saved") / "sees"
    shutil.copytree(FIXTURES / "vision/nano-gemma3-vl", sees)
    (sees / "chat_template.jinja").write_text(TEMPLATE)
    phi = shutil.copytree(FIXTURES / "nano-phi4", sees.parent / "phi")
    (phi / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    write_digests(phi / "model.onnx.data", SHARD_SIZE)
    for bits in (0, 8):
        (phi / f"prefix{bits}.state").write_bytes(prefix(phi, bits))
    other = shutil.copytree(FIXTURES / "nano-qwen2", sees.parent / "other")
    weights = bytearray((other / "model.onnx.data").read_bytes())
    weights[100] ^= 1
    (other / "model.onnx.data").write_bytes(weights)
    tuned = shutil.copytree(LORA, sees.parent / "tuned")
    (tuned / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    models = {"sees": sees, "tuned": tuned, "one": FIXTURES / "nano-qwen2", "other": other, "phi": phi}
    with running(SiteServer(assemble(), models)) as server:
        yield server.url + "blank.html"


def prefix(folder: Path, bits: int) -> bytes:
    """The state of a system message, computed by the reference device."""
    model = Model(str(folder))
    tokenizer, params = Tokenizer(model), GeneratorParams(model)
    params.set_search_options(max_length=100)
    with Generator(model, params) as generator:
        text = tokenizer.apply_chat_template([SYSTEM], add_generation_prompt=False)
        generator.append_tokens(tokenizer.encode(text))
        return generator.save_state(bits=bits)


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.evaluate(SET_UP)
    yield page
    context.close()


def reloaded(page: Page) -> Page:
    page.reload()
    page.evaluate(SET_UP)
    return page


SAVE = """async ([model, load_options, options]) => {
  const llm = await load(model, load_options);
  const session = llm.session([{ role: "system", content: "be brief" }]);
  await session.send("hello", options).result;
  await session.send("more", options).result;
  const saved = await session.save("talk");
  const { messages } = session;
  const unbroken = await ids(session.send("and more", options));
  llm.close();
  return { saved, messages, unbroken };
}"""
CONTINUE = """async ([model, load_options, options]) => {
  const llm = await load(model, load_options);
  const list = await llm.sessions.list();
  const session = await llm.restore("talk");
  const { messages, restored } = session;
  const continued = await ids(session.send("and more", options));
  llm.close();
  return { list, messages, restored, continued };
}"""
GREEDY = {"temperature": 0, "maxTokens": 8}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [GREEDY, {"temperature": 0.9, "seed": 4, "maxTokens": 8}], ids=["greedy", "seeded"])
@pytest.mark.parametrize(
    "load",
    [{"device": "webgpu"}, {"device": "wasm"}, {"device": "wasm", "shared": True}],
    ids=["webgpu", "wasm", "shared"],
)
def test_a_reloaded_page_continues(load: dict[str, Any], options: dict[str, Any], page: Page) -> None:
    before = page.evaluate(SAVE, ["one", load, options])
    after = reloaded(page).evaluate(CONTINUE, ["one", load, options])
    assert after["continued"] == before["unbroken"], "the same ids, and as many tokens that were not run"
    assert after["continued"][1] >= 30
    assert after["messages"] == before["messages"]
    saved = before["saved"]
    assert (saved["reason"], saved["evicted"], saved["messages"]) == ("", [], 5)
    assert saved["bytes"] > saved["tokens"] > 30
    assert [each["id"] for each in after["list"]] == ["talk"]
    assert after["restored"] == {"tokens": saved["tokens"], "bits": 0, "reason": ""}


UNUSABLE = """async ([model, change]) => {
  const changes = {
    damaged: (bytes) => { bytes[bytes.length - 9] ^= 4; return bytes; },
    cut: (bytes) => bytes.slice(0, -1),
    empty: () => new Uint8Array(),
    foreign: (bytes) => bytes.fill(7),
  };
  if (changes[change]) await rewrite(".state", changes[change]);
  if (change === "gone") for (const [folder, name] of await files(".state")) await folder.removeEntry(name);
  const told = [];
  const onEvent = (event) => told.push(JSON.stringify(event));
  const llm = await load(model, { device: "wasm", onEvent });
  const session = await llm.restore("talk");
  const found = { restored: session.restored, messages: session.messages.length };
  found.continued = await ids(session.send("and more", { temperature: 0, maxTokens: 8 }));
  llm.close();
  return { ...found, told: told.join(" ") };
}"""
WAYS = {
    "damaged": "rows are damaged: shard 0",
    "foreign": "rows are damaged: shard 0",
    "cut": "bytes are left of",
    "empty": "0 bytes are left of",
    "gone": "it is gone",
}


def test_a_state_that_cannot_be_used_is_computed_again(page: Page) -> None:
    before = page.evaluate(SAVE, ["one", {"device": "wasm"}, GREEDY])
    found = page.evaluate(UNUSABLE, ["other", ""])
    assert "other weights: model.onnx.data" in found["restored"]["reason"]
    assert (found["restored"]["tokens"], found["messages"], found["continued"][1]) == (0, 5, 0)
    for change, words in WAYS.items():
        found = reloaded(page).evaluate(UNUSABLE, ["one", change])
        assert words in found["restored"]["reason"], change
        assert (found["restored"]["tokens"], found["messages"]) == (0, 5)
        assert found["continued"] == [before["unbroken"][0], 0], "computed as from the beginning"
        assert "its messages are computed again" in found["told"]


NARROW = """async ([bits]) => {
  const options = { temperature: 0, maxTokens: 8 };
  const found = { restored: [], continued: [] };
  let llm = await load("phi", { device: "webgpu" });
  const session = llm.session();
  await session.send("hello you and all the others there", options).result;
  found.whole = (await session.save("whole")).bytes;
  found.saved = await session.save("talk", { bits });
  for (const device of ["webgpu", "wasm"]) {
    llm.close();
    llm = await load("phi", { device });
    const again = await llm.restore("talk");
    found.restored.push(again.restored);
    found.continued.push(await ids(again.send("and more", options)));
  }
  found.refused = await failure(llm.session().save("x", { bits: 5 }));
  llm.close();
  return found;
}"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("bits", "share"), [(8, 34 / 128), (4, 20 / 128)])
def test_rows_in_fewer_bits_are_widened_alike_on_each_device(bits: int, share: float, page: Page) -> None:
    found = page.evaluate(NARROW, [bits])
    assert found["saved"]["bytes"] == pytest.approx(found["whole"] * share)
    assert found["restored"] == [{"tokens": found["saved"]["tokens"], "bits": bits, "reason": ""}] * 2
    [on_gpu, on_cpu] = found["continued"]
    assert on_gpu == on_cpu
    assert on_gpu[1] > 10
    code, message = found["refused"]
    assert code == "OptionError"
    assert "0, 4 or 8" in message


SHIPPED = """async ([device, system]) => {
  const options = { temperature: 0, maxTokens: 8 };
  const told = [];
  const onEvent = (event) => told.push(JSON.stringify(event));
  const llm = await load("phi", { device, onEvent });
  const begun = async (url) => {
    const session = await llm.sessionFrom(url, [system], options);
    const run = session.send("and you", options);
    const { tokenIds, keptTokens, promptTokens } = await run.result;
    return { restored: session.restored, tokenIds, keptTokens, promptTokens };
  };
  const found = { plain: await ids(llm.session([system]).send("and you", options)) };
  for (const name of ["prefix0", "prefix8", "none"]) found[name] = await begun(`/models/phi/${name}.state`);
  found.text = await begun("/models/phi/genai_config.json");
  llm.close();
  const other = await load("one", { device });
  found.other = (await other.sessionFrom("/models/phi/prefix0.state", [system], options)).restored;
  found.refused = await failure(other.sessionFrom("file:///a.state", [system]));
  other.close();
  return { ...found, told: told.filter((each) => each.includes("the messages are computed")).length };
}"""


@pytest.mark.parametrize("device", ["webgpu", "wasm"])
def test_a_prefix_that_python_computed_is_shipped_with_an_app(device: str, page: Page) -> None:
    found = page.evaluate(SHIPPED, [device, SYSTEM])
    for name, bits in (("prefix0", 0), ("prefix8", 8)):
        begun = found[name]
        assert begun["restored"] == {"tokens": begun["restored"]["tokens"], "bits": bits, "reason": ""}
        assert begun["keptTokens"] >= begun["restored"]["tokens"] - 1 > 20, "the system message is not computed"
        assert begun["promptTokens"] > begun["keptTokens"]
    assert found["prefix0"]["tokenIds"] == found["plain"][0]
    for name, words in (("none", "check the state's address"), ("text", "no saved state")):
        begun = found[name]
        assert (begun["restored"]["tokens"], begun["keptTokens"]) == (0, 0)
        assert words in begun["restored"]["reason"]
        assert begun["tokenIds"] == found["plain"][0]
    assert "another model" in found["other"]["reason"]
    assert found["refused"][0] == "OptionError"
    assert found["told"] == 2


BUDGET = """async () => {
  const llm = await load("one", { device: "wasm" });
  const options = { temperature: 0, maxTokens: 4 };
  const found = {};
  for (const id of ["a", "b", "c"]) {
    const session = llm.session();
    await session.send("hello", options).result;
    found[id] = await session.save(id, { budget: found.a ? 2 * found.a.bytes : 1e9 });
    if (id === "b") await llm.restore("a");
    window.last = session;
  }
  found.list = (await llm.sessions.list()).map(({ id, bytes }) => [id, bytes > 0]);
  found.b = (await llm.restore("b")).restored;
  found.small = await failure(last.save("d", { budget: 10 }));
  found.again = await last.save("c");
  found.files = (await files(".state")).length;
  found.missing = await llm.restore("nothing");
  const refused = [last.save(""), last.save("x", { budget: -1 }), last.save("x", { bytes: 1 }), llm.restore(3)];
  found.refused = await Promise.all([...refused, llm.sessions.delete(undefined)].map(failure));
  await rewrite(".json", (bytes) => bytes.fill(32, 70, 80));
  found.damaged = [];
  for (const id of ["a", "b", "c"]) found.damaged.push(await failure(llm.restore(id)));
  found.left = (await llm.sessions.list()).length;
  await llm.sessions.delete("a");
  await llm.sessions.delete("a");
  await llm.sessions.delete();
  found.end = [(await llm.sessions.list()).length, (await files("")).length];
  await last.save("e");
  const empty = llm.session([{ role: "user", content: "unsaid" }]);
  found.unrun = (await empty.save("f")).reason;
  found.unrunRestored = (await llm.restore("f")).restored;
  llm.close();
  return found;
}"""


def test_the_least_recently_used_states_are_removed_for_the_budget(page: Page) -> None:
    found = page.evaluate(BUDGET)
    assert (found["a"]["evicted"], found["c"]["evicted"]) == ([], ["b"])
    assert found["list"] == [["c", True], ["a", True], ["b", False]]
    assert found["b"]["tokens"] == 0
    assert "removed for those of later sessions" in found["b"]["reason"]
    code, message = found["small"]
    assert code == "StorageError"
    assert "the budget is 10: raise it" in message
    assert found["files"] == 2, "the earlier state of an id goes"
    assert found["missing"] is None
    assert [code for code, _ in found["refused"]] == ["OptionError"] * 5
    assert [each and each[0] for each in found["damaged"]].count("StorageError") == 1
    assert found["left"] == 2
    assert found["end"] == [0, 0]
    assert "nothing was computed" in found["unrun"]
    assert found["unrunRestored"]["tokens"] == 0


PICTURES = """async ([url]) => {
  const blob = await (await fetch(url)).blob();
  const llm = await load("sees", { device: "wasm" });
  const options = { temperature: 0, maxTokens: 4 };
  const session = llm.session();
  await session.send({ role: "user", content: [{ type: "text", text: "what is this?" }, blob] }, options).result;
  await session.save("seen");
  const unbroken = await ids(session.send("and now?", options));
  const again = await llm.restore("seen");
  const continued = await ids(again.send("and now?", options));
  const [{ content }] = again.messages;
  llm.close();
  return { unbroken, continued, restored: again.restored, address: content[1].image_url.slice(0, 30) };
}"""


def test_pictures_are_saved_with_their_messages(page: Page) -> None:
    found = page.evaluate(PICTURES, [data_url(PNG)])
    assert found["address"].startswith("data:")
    assert found["restored"]["reason"] == ""
    assert found["continued"] == found["unbroken"]
    assert found["continued"][1] > 256, "the picture's tokens are not run again"


ADAPTED = """async ([messages, adapters]) => {
  const { Client } = await import("/capstan/capstan.js");
  const client = await Client.start();
  const model = `${location.origin}/models/tuned/`;
  const ask = async (kind, adapter, more) => {
    const options = { device: "wasm", max_new_tokens: 8, search: { do_sample: false }, session: "one" };
    const reply = await client.request({ kind, model, ...options, adapter: adapter && model + adapter, ...more });
    if (!reply.ok) throw new Error(reply.error.message);
    return reply.result;
  };
  const found = [];
  for (const adapter of adapters) {
    const restored = await ask("restore_session", adapter, { id: "tuned" });
    const { token_ids, kept_tokens, text } = await ask("chat", adapter, { messages });
    found.push({ restored, token_ids, kept_tokens, text });
  }
  const save = { kind: "save_session", session: "one", id: "tuned", messages, budget: 1e9, bits: 0 };
  const saved = (await client.request(save)).result;
  client.close();
  return { found, saved };
}"""


def test_a_session_with_an_adapter_continues_after_a_reload_with_that_adapter_only(page: Page) -> None:
    messages = [{"role": "user", "content": "hello you and all the others there"}]
    before = page.evaluate(ADAPTED, [messages, ["first.onnx_adapter"]])
    [unbroken] = before["found"]
    assert (unbroken["restored"], before["saved"]["reason"]) == (None, "")
    messages += [{"role": "assistant", "content": unbroken["text"]}, {"role": "user", "content": "and more"}]
    after = reloaded(page).evaluate(ADAPTED, [messages, [None, "second.onnx_adapter", "first.onnx_adapter"]])
    *others, same = after["found"]
    for each in others:
        assert "LoRA adapters" in each["restored"]["reason"]
        assert each["kept_tokens"] == 0
    assert same["restored"] == {**same["restored"], "tokens": before["saved"]["tokens"], "reason": ""}
    assert same["kept_tokens"] > 15
    prompt = Tokenizer(Model(str(LORA))).encode("".join(f"{each['content']} " for each in messages))
    actions = [("adapter", "first"), ("append", prompt), ("generate", 8)]
    assert same["token_ids"] == oracle.drive(LORA, actions).picked
