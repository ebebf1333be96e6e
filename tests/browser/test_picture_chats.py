"""Pictures in a page's chats: the ids are those of CPython, in every form, and what is no picture is refused."""

from __future__ import annotations

import io
import json
import shutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime_genai as native
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

import capstan
from buildtools.site import assemble
from capstan_host.headless.static_server import running
from capstan_host.site_server import SiteServer
from tests.pictures import SEEN, checks, gradient, png_file
from tests.unit import test_pictures_in_patches as patches
from tests.unit.test_picture_chats import TEMPLATE, begun, image, said, user

FIXTURES = Path(__file__).parents[1] / "fixtures"
PNG, OTHER = png_file(gradient()), png_file(checks())
TILES = FIXTURES / "vision/nano-idefics3"
SET_UP = """async ([url, other]) => {
  const { Capstan } = await import("/capstan/capstan.js");
  window.load = (name, device) => Capstan.load(`/models/${name}/`, { device });
  window.user = (...content) => ({ role: "user", content });
  window.text = (text) => ({ type: "text", text });
  window.blob = await (await fetch(url)).blob();
  window.otherBlob = await (await fetch(other)).blob();
  window.options = { temperature: 0, maxTokens: 6 };
  window.failure = (work) => work.then(() => null, ({ code, message }) => [code, message]);
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("chats") / "sees"
    shutil.copytree(FIXTURES / "vision/nano-gemma3-vl", made)
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def page(browser: Browser, folder: Path) -> Iterator[Page]:
    shutil.copytree(patches.FOLDER, folder.parent / "patches")
    (folder.parent / "patches/chat_template.jinja").write_text(patches.TEMPLATE)
    models = {
        "sees": folder,
        "patches": folder.parent / "patches",
        "tiles": TILES,
        "nano-qwen2": FIXTURES / "nano-qwen2",
    }
    with running(SiteServer(assemble(), models)) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url + "blank.html")
        page.evaluate(SET_UP, [data_url(PNG), data_url(OTHER)])
        yield page
        context.close()


def data_url(file: bytes) -> str:
    return "data:image/png;base64," + b64encode(file).decode()


TALK = """async (device) => {
  const llm = await load("sees", device);
  const bitmap = await createImageBitmap(blob);
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: bitmap.width, height: bitmap.height });
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  const url = URL.createObjectURL(blob);
  const forms = [blob, bitmap, canvas, { type: "image_url", image_url: { url } }];
  const found = { alone: [] };
  for (const form of device === "wasm" ? forms : [blob]) {
    const { tokenIds } = await llm.chat([user(text("A "), form, text("?"))], options).result;
    found.alone.push(tokenIds);
  }
  const session = llm.session([user(text("A "), blob, text("?"))]);
  await session.regenerate(options).result;
  const told = ({ tokenIds, keptTokens, promptTokens }) => ({ tokenIds, keptTokens, promptTokens });
  session.rewind(1);
  found.second = told(await session.send(user(otherBlob), options).result);
  found.exchanged = told(await session.edit(0, user(text("A "), otherBlob, text("?")), options).result);
  const several = llm.chat([user(text("A "), blob, text("?"))], { maxTokens: 6, n: 2, seed: 1, temperature: 1e-4 });
  found.several = (await several.result).choices.map(({ tokenIds }) => tokenIds);
  found.stats = llm.stats();
  llm.close();
  return found;
}"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_answers_about_pictures_are_those_of_cpython(page: Page, folder: Path, device: str) -> None:
    found = page.evaluate(TALK, device)
    model = capstan.Model(str(folder), device="cpu")
    _, wanted = said(begun(model), user("A ", image(PNG), "?"))
    assert found["alone"] == [wanted] * (4 if device == "wasm" else 1)
    assert found["several"] == [wanted] * 2
    talk, one = begun(model), user("A ", image(PNG), "?")
    said(talk, one)
    kept, second = said(talk, one, user(image(OTHER)))
    assert (found["second"]["tokenIds"], found["second"]["keptTokens"]) == (second, kept)
    exchanged = found["exchanged"]
    assert exchanged["tokenIds"] == said(begun(model), user("A ", image(OTHER), "?"))[1]
    assert exchanged["keptTokens"] < 20
    assert found["stats"]["capture"] == ("off" if device == "wasm" else "tape")


ASK = """async ([device, cases, pictures]) => {
  const llm = await load("tiles", device);
  const blobs = {};
  for (const [name, url] of Object.entries(pictures)) blobs[name] = await (await fetch(url)).blob();
  const found = [];
  for (const { messages, pictures: given } of cases) {
    const blobsLeft = given.map((name) => blobs[name]);
    const put = (part) => (part.type === "image" ? blobsLeft.shift() : part);
    const said = messages.map(({ role, content }) => ({ role, content: content.map(put) }));
    found.push((await llm.chat(said, { temperature: 0, maxTokens: 12 }).result).tokenIds);
  }
  found.push(llm.stats().capture);
  llm.close();
  return found;
}"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_a_repository_that_sees_tiles_picks_the_ids_of_transformers(page: Page, device: str) -> None:
    cases = json.loads((TILES / "expected.json").read_text())
    names = list(cases) if device == "wasm" else ["gradient", "second turn", "text"]
    pictures = {name: data_url(png_file(rows)) for name, rows in SEEN.items()}
    *found, capture = page.evaluate(ASK, [device, [cases[name] for name in names], pictures])
    assert found == [cases[name]["ids"] for name in names]
    assert capture == ("off" if device == "wasm" else "tape")


IN_PATCHES = """async (device) => {
  const llm = await load("patches", device);
  const found = [];
  for (const parts of [[blob, text("Look")], [blob, text("Look"), otherBlob], [text("Look")]])
    found.push((await llm.chat([user(...parts)], options).result).tokenIds);
  found.push(llm.stats().capture);
  llm.close();
  return found;
}"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_answers_about_pictures_of_any_size_are_the_native_packages(page: Page, device: str) -> None:
    *found, capture = page.evaluate(IN_PATCHES, device)
    there, wanted = native.Model(str(patches.FOLDER)), []
    for parts, pictures in (
        (f"{patches.SEEN}Look", [PNG]),
        (f"{patches.SEEN}Look{patches.SEEN}", [PNG, OTHER]),
        ("Look", []),
    ):
        given = patches.inputs(native, there, *pictures, prompt=f"<|im_start|>user: {parts}<|im_end|>")
        wanted.append(patches.next_ids(patches.generator(native, there, given), 6))
    assert found == wanted
    assert capture == ("off" if device == "wasm" else "tape")


BAD = """async ([files, name]) => {
  const llm = await load(name, "wasm");
  const found = {};
  for (const [kind, data] of Object.entries(files)) {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    found[kind] = await failure(llm.chat([user({ type: "image", image: bytes })], options).result);
  }
  const image = (image) => ({ type: "image", image });
  found.address = await failure(llm.chat([user({ type: "image_url", image_url: { url: "/none.png" } })]).result);
  const kept = { ...options, chatTemplateKwargs: { split_special_tokens: false } };
  found.fewer = await failure(llm.chat([user(image(blob), text("<start_of_image>"))], kept).result);
  found.again = (await llm.chat([{ role: "user", content: "a" }], options).result).tokenIds.length;
  llm.close();
  return found;
}"""


def test_what_is_no_picture_is_refused_and_the_next_answer_comes(page: Page) -> None:
    animated = io.BytesIO()
    frames = [Image.new("RGB", (4, 4), (shade, 0, 0)) for shade in (1, 200)]
    frames[0].save(animated, "GIF", save_all=True, append_images=frames[1:])
    wide = io.BytesIO()
    Image.new("1", (20_000, 1)).save(wide, "PNG")
    files = {"junk": b"junk", "none": b"", "cut": PNG[:200], "animated": animated.getvalue(), "wide": wide.getvalue()}
    found = page.evaluate(BAD, [{kind: b64encode(data).decode() for kind, data in files.items()}, "sees"])
    for kind, message in (
        ("junk", "picture 0 has 4 bytes that are not a picture"),
        ("none", "picture 0 has no bytes"),
        ("cut", "picture 0 is damaged"),
        ("animated", "picture 0 is animated, with 2 frames"),
        ("wide", "picture 0 has 20000 x 1 pixels; a side may have at most 16384"),
        ("address", "/none.png cannot be read (Error: the server answered 404)"),
        ("fewer", "<start_of_image> 2 times, but 1 pictures were given"),
    ):
        code, told = found[kind]
        assert (code, message in told) == ("PictureError", True), (kind, told)
    assert found["again"] == 6


def test_a_model_of_text_that_is_given_a_picture_is_named(page: Page) -> None:
    found = page.evaluate(BAD, [{"png": b64encode(PNG).decode()}, "nano-qwen2"])
    code, message = found["png"]
    assert code == "UnsupportedModelError"
    assert "the messages have pictures (1), and " in message
    assert found["again"] == 6


def test_python_is_given_a_picture_that_did_not_come(page: Page) -> None:
    refused: Any = page.evaluate(
        """async () => {
          const { Client } = await import("/capstan/capstan.js");
          const client = await Client.start();
          const messages = [user({ type: "image", picture: 1 })];
          const model = new URL("/models/sees/", location.href).href;
          const reply = await client.request({ kind: "chat", model, device: "wasm", messages });
          client.close();
          return reply.error;
        }"""
    )
    assert refused["type"] == "OptionError"
    assert "messages[0].content[0].picture is 1; 0 pictures came with the request" in refused["message"]
