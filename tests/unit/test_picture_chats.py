"""Conversations with pictures pick the native package's ids, keep what was computed for a picture, and refuse what does
not fit by name."""

from __future__ import annotations

import shutil
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime_genai as native
import pytest

import capstan
from capstan import (
    ArgumentTypeError,
    DeviceLostError,
    FallbackWarning,
    OptionError,
    PictureError,
    Tokenizer,
    UnsupportedModelError,
)
from capstan.device.host_sampled import HostSampledDecoder
from capstan.generation.chat_prompt import ChatPrompts
from capstan.generation.conversation import Conversation
from capstan.host import current_host
from capstan.picture.picture_file import Rgba
from capstan.text.messages import without_pictures
from tests.pictures import checks, gradient, png_file
from tests.unit.media_models import refused

FIXTURES = Path(__file__).parents[1] / "fixtures"
# As Gemma 3's, but short: of 640 positions a picture takes 256.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}:{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{{ '<start_of_image>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}"
    "|{% endfor %}"
)
GRADIENT, CHECKS = gradient(), checks()
PNG, OTHER = png_file(GRADIENT), png_file(CHECKS)
NEW = 6


def rgba(rows: Sequence[bytes]) -> Rgba:
    width = len(rows[0]) // 3
    pixels = (row[3 * x : 3 * x + 3] + b"\x80" for row in rows for x in range(width))
    return Rgba(width, len(rows), b"".join(pixels))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("chats") / "nano-gemma3-vl"
    shutil.copytree(FIXTURES / "vision/nano-gemma3-vl", made)
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> capstan.Model:
    return capstan.Model(str(folder), device="cpu")


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


def image(picture: Any) -> dict[str, Any]:
    return {"type": "image", "image": picture}


def begun(model: capstan.Model, **search: Any) -> Conversation:
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=640, **search)
    return Conversation(ChatPrompts(Tokenizer(model), model), capstan.Generator(model, params))


def said(talk: Conversation, *messages: Any) -> tuple[int, list[int]]:
    """The tokens that were kept, and those that the model picked."""
    kept, picked = talk.ask(messages), list[int]()
    # A page that is driven beside it has a loop.
    current_host().wait(talk.answer(NEW, lambda token, _: picked.append(token)))
    return kept, [token for token in picked if token >= 0]


def natives(folder: Path, prompt: str, picture: bytes) -> list[int]:
    og: Any = native
    loaded = og.Model(str(folder))
    params = og.GeneratorParams(loaded)
    params.set_search_options(do_sample=False, max_length=600)
    made = og.Generator(loaded, params)
    made.set_inputs(loaded.create_multimodal_processor()(prompt, images=og.Images.open_bytes(picture)))
    start = made.token_count()
    for _ in range(NEW):
        made.generate_next_token()
    return [int(token) for token in made.get_sequence(0)][start:]


def test_a_picture_in_a_message_is_the_native_packages(model: capstan.Model, folder: Path) -> None:
    wanted = natives(folder, "<bos>u:A <start_of_image>?|", PNG)
    url = "data:image/png;base64," + b64encode(PNG).decode()
    for part in (image(PNG), {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}, image(rgba(GRADIENT))):
        assert said(begun(model), user("A ", part, "?")) == (0, wanted)
    assert said(begun(model), user("A ", image(OTHER), "?"))[1] == natives(folder, "<bos>u:A <start_of_image>?|", OTHER)


def test_a_second_turn_keeps_the_picture_and_a_further_one_is_run_alone(model: capstan.Model, ran: list[str]) -> None:
    talk, one, answer = begun(model), user(image(PNG), "?"), {"role": "assistant", "content": "x"}
    said(talk, one)
    ran.clear()
    kept, picked = said(talk, one, answer, user("b"))
    assert kept > 256
    assert ran == []
    assert picked == said(begun(model), one, answer, user("b"))[1]
    kept, picked = said(talk, one, answer, user(image(OTHER)))
    assert kept > 256
    assert len(ran) == 1
    assert picked == said(begun(model), one, answer, user(image(OTHER)))[1]


def test_a_conversation_goes_on_after_its_device_is_lost(
    folder: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, one = capstan.Model(str(folder), device="cpu"), user(image(PNG), "?")
    talk, more = begun(model), user(image(OTHER))
    first = said(talk, one)[1]
    run, left = HostSampledDecoder._run, [2]

    async def lost(self: HostSampledDecoder, ids: Sequence[int], past: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise DeviceLostError("the device is gone")
        await run(self, ids, past)

    monkeypatch.setattr(HostSampledDecoder, "_run", lost)
    with pytest.warns(FallbackWarning, match="the device is gone"):
        kept, second = said(talk, one, more)
    assert model.recoveries == 1
    # The new device has the features of all pictures of the sequence.
    assert len(ran) == 2 + 2
    assert kept > 256
    assert second == said(begun(model), one, more)[1]
    assert said(begun(model), one)[1] == first
    model.close()


def test_another_picture_at_the_same_ids_is_computed_anew(model: capstan.Model) -> None:
    talk = begun(model)
    first = said(talk, user("A ", image(PNG), "?"))[1]
    kept, second = said(talk, user("A ", image(OTHER), "?"))
    assert kept < 20
    assert second != first
    assert said(talk, user("A ", image(PNG), "?")) == (kept, first)
    kept, text = said(talk, user("only text"))
    assert text == said(begun(model), user("only text"))[1]
    # No answer about this picture is requested.
    talk.ask([user("A ", image(OTHER), "?")])
    assert said(talk, user("A ", image(PNG), "?"))[1] == first


def test_a_conversation_is_tried_again_after_a_prompt_that_is_too_long(model: capstan.Model) -> None:
    talk, three = begun(model), user(image(PNG), image(OTHER), image(PNG))
    first = said(talk, user(image(PNG), "?"))[1]
    refused(capstan.PromptError, "max_length is 640", lambda: talk.ask([three]))
    assert said(talk, user(image(PNG), "?"))[1] == first


def test_bad_input_is_refused_by_name(model: capstan.Model) -> None:
    talk = begun(model)

    def url(url: Any, **more: Any) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url, **more}}

    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"type": "image"}, OptionError, "messages[0].content[0] has type; a picture's part has only type and image"),
        ({"type": "image", "image": PNG, "size": 3}, OptionError, "has type, image, size"),
        (image("cat.png"), ArgumentTypeError, "a picture is of type str"),
        (image(b""), PictureError, "picture 0 has no bytes"),
        (image(b"junk"), PictureError, "picture 0 has 4 bytes that are not a picture"),
        (image(PNG[:200]), PictureError, "picture 0 is damaged"),
        (
            image(Rgba(20_000, 1, bytes(80_000))),
            PictureError,
            "picture 0 has 20000 x 1 pixels; a side may have at most 16384",
        ),
        (image(Rgba(2, 2, bytes(15))), PictureError, "2 x 2 pixels in 15 bytes"),
        (image(Rgba(0, 0, b"")), PictureError, "0 x 0 pixels in 0 bytes"),
        (url("https://example.test/cat.png"), OptionError, "image_url.url is 'https://example.test/cat.png'; it must"),
        (url("data:image/png;base64,%%%"), OptionError, "is not base64"),
        (url("data:,", detail="high"), OptionError, "image_url.detail is 'high'"),
        (url("data:,"), PictureError, "picture 0 has no bytes"),
        ({"type": "input_audio", "input_audio": {}}, OptionError, "messages[0].content[0].type is 'input_audio'"),
        ({"type": "video"}, OptionError, "chats take no sounds and videos"),
    ]
    for part, kind, message in cases:
        refused(kind, message, partial(said, talk, user(part, "?")))
    more = user(image(PNG), "<start_of_image>")
    soft = user(image(PNG), "<image_soft_token>")
    for given, told in (
        (more, "<start_of_image> 2 times, but 1 pictures were"),
        (soft, "257 placeholders; its pictures"),
    ):
        refused(PictureError, told, partial(talk.ask, [given], split_special_tokens=False))
        begun(model).ask([given])  # As text it stands for no picture.
    assert said(talk, user(image(PNG), "?"))[1] == said(begun(model), user(image(PNG), "?"))[1]


def test_a_model_of_text_is_named_and_templates_get_typed_parts() -> None:
    text = SimpleNamespace(config=SimpleNamespace(vision=None), facts=SimpleNamespace(name="Tiny"), type="llama")
    prompts: Any = ChatPrompts(SimpleNamespace(), text)  # type: ignore[arg-type]
    message = "the messages have pictures (1), and Tiny of type 'llama' reads only text"
    refused(UnsupportedModelError, message, lambda: prompts.of([user("a", image(PNG))]))
    shown, pictures = without_pictures([user(image(PNG), "a"), {"role": "user", "content": "b"}, user(image(OTHER))])
    assert [each["content"] for each in shown] == [
        [{"type": "image"}, {"type": "text", "text": "a"}],
        "b",
        [{"type": "image"}],
    ]
    assert pictures == [PNG, OTHER]
