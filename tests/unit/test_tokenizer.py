"""The tokenizer that runs in the page, bundled for Node, against onnxruntime-genai's."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers

from capstan import tokenizer as tokenizer_module
from capstan.errors import ArgumentTypeError, ConfigError, OptionError, UnsupportedModelError
from capstan.local.rust_tokenizer import LocalBackend
from capstan.model_files.gguf.gguf_tokenizer import tokenizer_files
from capstan.tokenizer import Tokenizer
from tests import oracle
from tests.gguf_files import gguf_file, header_of
from tests.gguf_tokenizers import answers, digest, metadata, texts
from tests.page_tokenizer import Make, page_tokenizers

ROOT = Path(__file__).parents[2]
FIXTURES = sorted(path.parent for path in (ROOT / "tests" / "fixtures").glob("*/tokenizer.json"))
ONE_OF_EACH = [path for path in FIXTURES if path.name in ("nano-llama", "nano-qwen2", "nano-granite")]
TEXTS = [
    "",
    " ",
    "Hello world",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    " naïve café, Straße, 日本語, 한국어, 🙂🚀👩‍💻",
    "  two  spaces\n\n\nthree\t\ttabs\r\n  ",
    "1234567 3.14159 0xFF",
    "it's we'LL they'Ve don't",
    "a<|im_start|>user\nb<|im_end|>c<s>d</s>e <fim_prefix> <pad><|end_of_text|>",
    "\u0001\u00a0\u200b\ufeffx\u2028y",  # no NUL: the oracle takes it for the end
    "The capstan turns and the tape runs past the head at a constant speed." * 20,
]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    with page_tokenizers(tmp_path_factory.mktemp("node")) as made:
        yield made


def tokenizer_of(folder: Path, make: Make) -> Tokenizer:
    return Tokenizer.from_files(
        make, (folder / "tokenizer.json").read_bytes(), (folder / "tokenizer_config.json").read_bytes()
    )


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda folder: folder.name)
def test_encode_gives_the_oracles_ids(folder: Path, make: Make) -> None:
    tokenizer = tokenizer_of(folder, make)
    for text in TEXTS:
        assert tokenizer.encode(text) == oracle.encode(folder, text), text


@pytest.mark.parametrize("folder", ONE_OF_EACH, ids=lambda folder: folder.name)
def test_encode_gives_the_oracles_ids_for_random_text(folder: Path, make: Make) -> None:
    tokenizer = tokenizer_of(folder, make)
    draw = random.Random(7)
    alphabet = "abcdefghij ABC \n\t.,()'\"0123456789_=éüßλжあ漢한🙂"
    for _ in range(300):
        text = "".join(draw.choices(alphabet, k=draw.randint(1, 40)))
        assert tokenizer.encode(text) == oracle.encode(folder, text), text


@pytest.mark.parametrize("folder", ONE_OF_EACH, ids=lambda folder: folder.name)
def test_decode_gives_the_oracles_text(folder: Path, make: Make) -> None:
    tokenizer = tokenizer_of(folder, make)
    for text in TEXTS:
        ids = oracle.encode(folder, text)
        assert tokenizer.decode(ids) == (oracle.decode(folder, ids) if ids else ""), text


@pytest.mark.parametrize("kind", ["qwen2", "llama", "gpt-4o", "deepseek-llm"])
def test_tokenizers_of_gguf_files_encode_as_llama_cpp(kind: str, make: Make) -> None:
    files = tokenizer_files(header_of(gguf_file(metadata(kind))))
    tokenizer = Tokenizer.from_files(make, files["tokenizer.json"], files["tokenizer_config.json"])
    asked = [*zip(texts(kind), answers(kind), strict=True)][:600]
    assert [text for text, answer in asked if digest(tokenizer.encode(text)) != answer] == []


@pytest.mark.parametrize("folder", ONE_OF_EACH, ids=lambda folder: folder.name)
def test_stream_pieces_joined_are_the_decoded_text(folder: Path, make: Make) -> None:
    tokenizer = tokenizer_of(folder, make)
    draw = random.Random(3)
    for _ in range(40):
        ids = [draw.randrange(512) for _ in range(60)]
        stream = tokenizer.create_stream()
        pieces = [stream.decode(token) for token in ids]
        assert "".join(pieces) + stream.flush() == tokenizer.decode(ids)


@pytest.mark.parametrize("folder", ONE_OF_EACH, ids=lambda folder: folder.name)
def test_stream_holds_a_character_until_it_is_whole(folder: Path, make: Make) -> None:
    tokenizer = tokenizer_of(folder, make)
    text = "日本 🙂🚀 Ελλ х"
    ids = tokenizer.encode(text)
    stream = tokenizer.create_stream()
    pieces = [stream.decode(token) for token in ids]
    assert "".join(pieces) == text
    assert "" in pieces, "no character spans tokens, so the test shows nothing"
    native = oracle.tokenizer(folder).create_stream()
    assert pieces == [native.decode(token) for token in ids]
    assert not any("\ufffd" in piece for piece in pieces)


def test_decode_leaves_out_ids_without_a_token(make: Make) -> None:
    tokenizer = tokenizer_of(FIXTURES[0], make)
    ids = tokenizer.encode("Hello")
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode([100000]) == ""
    assert tokenizer.decode([ids[0], 512, *ids[1:], -1]) == "Hello"


def test_an_id_without_a_token_is_not_shown_as_the_unknown_token(make: Make) -> None:
    content = json.loads((FIXTURES[0] / "tokenizer.json").read_text())
    content["model"]["unk_token"] = "A"
    assert Tokenizer.from_files(make, json.dumps(content)).decode([100000]) == ""


def test_special_tokens_are_added_and_shown_only_when_asked_for(make: Make) -> None:
    tokenizer = tokenizer_of(ROOT / "tests" / "fixtures" / "nano-llama", make)
    plain = tokenizer.encode("x")
    assert tokenizer.decode([0, *plain, 1]) == "x"
    tokenizer.update_options(add_special_tokens=True, skip_special_tokens="false")
    assert tokenizer.encode("x") == [0, *plain]
    assert tokenizer.decode([0, *plain, 1]) == "<s>x</s>"
    with pytest.raises(OptionError, match=r"lowercase: unknown tokenizer option"):
        tokenizer.update_options(lowercase=True)
    with pytest.raises(OptionError, match=r"expected true or false, got 'maybe'"):
        tokenizer.update_options(add_special_tokens="maybe")


@pytest.mark.parametrize("folder", FIXTURES, ids=lambda folder: folder.name)
def test_a_prompt_begins_with_the_special_tokens_of_the_post_processor(folder: Path, make: Make) -> None:
    """The judge is the Rust tokenizer, which adds them by itself."""
    tokenizer, judge = tokenizer_of(folder, make), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS[1:]:
        assert tokenizer.encode_prompt(text) == judge.encode(text).ids, text
    assert tokenizer.encode_prompt("") == []
    first = judge.encode("x").ids[:-1]
    assert tokenizer.beginning == (*first,)
    assert first == [0] or folder.name != "nano-llama"
    marked = "<s>x" if first else "x"
    assert tokenizer.encode_prompt(marked) == judge.encode("x").ids, "a text that begins so is left as it is"


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say 🙂\n  twice"},
    {"role": "assistant", "content": "🙂🙂"},
]


def test_chat_template_gives_the_oracles_prompt(make: Make) -> None:
    folder = ROOT / "tests" / "fixtures" / "nano-qwen2"
    tokenizer = tokenizer_of(folder, make)
    for generation in (True, False):
        wanted = oracle.tokenizer(folder).apply_chat_template(json.dumps(MESSAGES), add_generation_prompt=generation)
        assert tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=generation) == wanted
        assert tokenizer.apply_chat_template(json.dumps(MESSAGES), add_generation_prompt=generation) == wanted


def test_chat_template_can_be_given_or_come_from_its_own_file(make: Make) -> None:
    folder = ROOT / "tests" / "fixtures" / "nano-llama"
    template = "{% for message in messages %}{{ bos_token }}{{ message.content }}\n{% endfor %}"
    with pytest.raises(ConfigError, match=r"chat_template: missing"):
        tokenizer_of(folder, make).apply_chat_template(MESSAGES)
    wanted = "<s>Be brief.\n<s>Say 🙂\n  twice\n<s>🙂🙂\n"
    assert tokenizer_of(folder, make).apply_chat_template(MESSAGES, template_str=template) == wanted
    files = [(folder / name).read_text() for name in ("tokenizer.json", "tokenizer_config.json")]
    assert Tokenizer.from_files(make, files[0], files[1], template).apply_chat_template(MESSAGES) == wanted


def test_chat_template_errors_say_what_is_wrong(make: Make) -> None:
    tokenizer = tokenizer_of(ROOT / "tests" / "fixtures" / "nano-qwen2", make)
    with pytest.raises(ConfigError, match=r"chat_template: cannot be rendered"):
        tokenizer.apply_chat_template(MESSAGES, template_str="{% for %}")
    with pytest.raises(ConfigError, match=r"no tools here"):
        tokenizer.apply_chat_template(MESSAGES, template_str="{{ raise_exception('no tools here') }}")
    with pytest.raises(OptionError, match=r"line 1, column 2: not JSON"):
        tokenizer.apply_chat_template("[oops")
    with pytest.raises(ArgumentTypeError, match=r"messages is \['hi'\], of type list; .*each item is a dict"):
        tokenizer.apply_chat_template(["hi"])  # type: ignore[list-item]


def test_a_chat_template_that_goes_on_for_ever_is_ended(make: Make) -> None:
    tokenizer = tokenizer_of(ONE_OF_EACH[0], make)
    doubled = "{% set ns = namespace(a=[1]) %}{% for i in range(40) %}{% set ns.a = ns.a + ns.a %}{% endfor %}"
    with pytest.raises(ConfigError, match=r"takes \d+ characters.* at most 100\d{6} .*shorten its loops"):
        tokenizer.apply_chat_template(MESSAGES, template_str=doubled)
    with pytest.raises(ConfigError, match=r"100000"):
        tokenizer.apply_chat_template(MESSAGES, template_str="{% for a in range(100001) %}{% endfor %}")
    within = "{% for a in range(90000) %}{% endfor %}{{ range(2, 9, 3) | join(',') }} {{ range(3, 0, -1) | join(',') }}"
    assert tokenizer.apply_chat_template(MESSAGES, template_str=within) == "2,5,8 3,2,1"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model": {"type": "BPE",}}', r"tokenizer.json: line 1, column 26: not JSON"),
        ("[]", r"tokenizer.json: expected an object, got an array"),
        ("{}", r"tokenizer.json: model: missing, expected an object"),
        (
            '{"model": {"type": "BPE"}, "added_tokens": []}',
            r"tokenizer.json: model.vocab is missing; expected an obj.*copy",
        ),
    ],
)
def test_a_broken_tokenizer_file_is_named(content: str, message: str, make: Make) -> None:
    with pytest.raises(ConfigError, match=message):
        Tokenizer.from_files(make, content, "{}")


def test_a_broken_tokenizer_config_is_named(make: Make) -> None:
    content = (FIXTURES[0] / "tokenizer.json").read_text()
    with pytest.raises(ConfigError, match=r"tokenizer_config.json: line 1, column 1: not JSON"):
        Tokenizer.from_files(make, content, "nope")
    with pytest.raises(ConfigError, match=r"tokenizer_config.json: chat_template: expected a string, got int"):
        Tokenizer.from_files(make, content, '{"chat_template": 3}')


def test_a_batch_is_padded_behind_its_shorter_rows_and_decoded_row_by_row(make: Make) -> None:
    folder = next(path for path in FIXTURES if path.name == "nano-llama")
    tokenizer = tokenizer_of(folder, make)
    texts = ["def f(x):", "a"]
    native = oracle.tokenizer(folder)
    padded = native.encode_batch(texts).as_numpy().tolist()
    pad = padded[1][-1]
    assert tokenizer.encode_batch(texts, pad) == padded
    assert tokenizer.encode_batch(texts) == [oracle.encode(folder, text) for text in texts]
    assert tokenizer.decode_batch(padded) == native.decode_batch(native.encode_batch(texts)) == texts


def test_encode_wants_a_string(make: Make) -> None:
    with pytest.raises(ArgumentTypeError, match=r"text is b'x', of type bytes; give a text"):
        tokenizer_of(FIXTURES[0], make).encode(b"x")  # type: ignore[arg-type]


def test_the_tokenizers_package_gives_the_same_ids_and_text(make: Make) -> None:
    for folder in ONE_OF_EACH:
        page, local = tokenizer_of(folder, make), tokenizer_of(folder, LocalBackend)
        for text in TEXTS:
            assert local.encode(text) == page.encode(text)
            assert local.decode(local.encode(text)) == page.decode(page.encode(text))


KIMI = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_by(expression: str, make: Make) -> Tokenizer:
    content = json.loads((ONE_OF_EACH[0] / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, by_bytes]}
    return Tokenizer.from_files(make, json.dumps(content))


def test_sets_of_onigurumas_split_alike_or_are_refused(make: Make) -> None:
    texts = [*TEXTS, "def f中文(x):\r\n  return don't HELLO world1234 abc!?\n"]
    for expression in (KIMI, "[[:alpha:]]+", "[[:punct:]]|[[:^space:]a]+", "[a-z&&[^aeiou]]+", "[^[a-m]]+"):
        page, local = split_by(expression, make), split_by(expression, LocalBackend)
        for text in texts:
            assert page.encode(text) == local.encode(text), (expression, text)
    for expression in (r"\R", r"\X"):
        assert split_by(expression, LocalBackend).encode("a\r\nb")
        refusal = r"pre_tokenizer.pretokenizers\[0\].pattern: Invalid regular expression.*take a model with another"
        with pytest.raises(UnsupportedModelError, match=refusal):
            split_by(expression, make)


class Host:
    """The host of a model, which outlives it."""

    made = 0

    def tokenizer_backend(self, tokenizer_json: str, tokenizer_config_json: str) -> LocalBackend:
        self.made += 1
        return LocalBackend(tokenizer_json, tokenizer_config_json)


class Source:
    """A model, as far as its tokenizer needs one, which counts what it makes."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer_files = {
            name: (folder / name).read_text() for name in ("tokenizer.json", "tokenizer_config.json")
        }
        self.host = Host()

    @property
    def made(self) -> int:
        return self.host.made


def test_the_files_of_a_model_are_read_once_for_all_its_tokenizers() -> None:
    model, other = Source(ONE_OF_EACH[0]), Source(ONE_OF_EACH[0])
    first = Tokenizer(model)
    first.update_options(add_special_tokens=True)
    second = Tokenizer(model)
    assert (first.encode("Hello"), second.encode("Hello")) == (Tokenizer(other).encode("Hello"),) * 2
    assert (model.made, other.made) == (1, 1)
    second.update_options(skip_special_tokens=False)
    assert vars(Tokenizer(model)) == vars(Tokenizer(model)) != vars(first)


def test_the_tokenizer_of_a_model_goes_with_it() -> None:
    gc.collect()  # Models of other tests.
    before = len(tokenizer_module.made)
    model = Source(ONE_OF_EACH[0])
    tokenizer = Tokenizer(model)
    assert len(tokenizer_module.made) == before + 1
    del model
    gc.collect()
    assert len(tokenizer_module.made) == before
    assert tokenizer.encode("Hello")
