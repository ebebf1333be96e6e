"""Special tokens in Lark grammars: the ids of onnxruntime-genai, whose tokenizer here has a few more of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnxruntime_genai as og
import pytest

from capstan import Generator, GeneratorParams, Model
from capstan.errors import GuidanceError

QWEN = Path(__file__).parents[1] / "fixtures/nano-qwen2"
PROMPT = [5, 6, 7]
ADDED = {300: ("<tool_call>", True), 301: ("<plain>", False), 302: ("</tool_call>", True)}
END = 2  # <|im_end|>
GRAMMARS = [
    'start: "a" <tool_call> "b"',
    "start: <tool_call> <|im_start|>",
    'start: <[300]> "x"',
    'start: <[302,300]> "x"',
    'start: <tool_call>+ "x"',
    'start: (<tool_call> | "z") "x"',
    "start: <tool_call>{2}",
    "start: <tool_call> <tool_call>?",
    'start: "a" <|im_end|>',
    'start: t "x"\nt: <tool_call>',
    'start: <|im_start|> %json {"type":"null"} <|endoftext|>',
    'start: /[a-z]{2}/ </tool_call> "x"',
    'start: call* "."\ncall: <tool_call> %json {"enum": ["a"]} </tool_call>',
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("special") / "model"
    shutil.copytree(QWEN, made)
    content = json.loads((made / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    for token, (text, special) in ADDED.items():
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        content["added_tokens"].append({"id": token, "content": text, "special": special, **flags})
        del vocab[next(old for old, id_ in vocab.items() if id_ == token)]
        vocab[text] = token
    merges = content["model"]["merges"]
    content["model"]["merges"] = [pair for pair in merges if "".join(pair).replace(" ", "") in vocab]
    (made / "tokenizer.json").write_text(json.dumps(content))
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return Model(str(folder))


@pytest.fixture(scope="module")
def native(folder: Path) -> og.Model:
    config = og.Config(str(folder))
    config.clear_providers()
    return og.Model(config)


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_ids_are_those_of_onnxruntime_genai(grammar: str, model: Model, native: og.Model) -> None:
    wanted_params = og.GeneratorParams(native)
    wanted_params.set_search_options(max_length=20, do_sample=False)
    wanted_params.set_guidance("lark_grammar", grammar, False)
    wanted = og.Generator(native, wanted_params)
    params = GeneratorParams(model)
    params.set_search_options(max_length=20, do_sample=False)
    params.set_guidance("lark_grammar", grammar)
    with Generator(model, params) as found:
        for generator in (wanted, found):
            generator.append_tokens(PROMPT)
        picked: list[list[int]] = [[], []]
        for ids, generator in zip(picked, (wanted, found), strict=True):
            while not generator.is_done():
                generator.generate_next_token()
                ids.append(int(generator.get_next_tokens()[0]))
    assert picked[1] == picked[0]


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (
            "start: <plain>",
            "line 1, column 8: there is no special token '<plain>'; the special tokens are '</tool_call>, <tool_call>,",
        ),
        ('start: A\nA: <tool_call> "b"', "line 2, column 4: <tool_call> in a terminal; name special tokens in rules"),
        ("start: <[300-302]>", "column 8: 300-302 has tokens that are not special; write text as text"),
        ("start: <[600]>", "600 has tokens that are not special"),
        ("start: <[7-5]>", "7-5 has tokens that are not special"),
        ("start: <[^300]>", "there is no special token '<[^300]>'"),
        ("start: <[*]>", "there is no special token '<[*]>'"),
        ('start: "a" <|im_end|> "b"', "column 12: a special token that ends outputs is followed by more; put it last"),
        ('start: t "x"\nt: <|im_end|>', "line 2, column 4: a special token that ends outputs is followed by more"),
        ("start: <|im_end|>*", "a special token that ends outputs is followed by more"),
    ],
)
def test_a_token_that_cannot_stand_there_is_refused_with_its_place(grammar: str, message: str, model: Model) -> None:
    with pytest.raises(GuidanceError) as refused:
        GeneratorParams(model).set_guidance("lark_grammar", grammar)
    assert message in str(refused.value)
