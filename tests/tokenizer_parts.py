"""Small files of tokenizers with each part that Rust's tokenizers knows, and texts on which they differ.

Their model gives a character that begins a piece another id than one within it, so that ids show how a text was cut.
"""

from __future__ import annotations

import json
import random
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

from tests.gguf_tokenizers import corpus

__all__ = [
    "ADDED",
    "DECODERS",
    "MODELS",
    "NORMALIZERS",
    "POST",
    "PRE_TOKENIZERS",
    "TEXTS",
    "UNKNOWN",
    "content",
    "rows",
]

Part = dict[str, Any]

BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
SPACES = "▁"
OTHER_VERSIONS = set("\u166d\u1734\u19da\u1a1b\U0001f642")
"""Characters with other properties in another version of Unicode."""
CHARSMAP = Path(__file__).parent / "fixtures" / "charsmap.json"


def settled(text: str) -> str:
    """The characters of Unicode 3.2, which all versions of Unicode treat alike."""
    return "".join(c for c in text if unicodedata.ucd_3_2_0.category(c) != "Cn" and c not in OTHER_VERSIONS)


TEXTS = [
    *dict.fromkeys(map(settled, corpus(["<s>", "[tool]"], 300))),
    *("ΑΣ ΟΔΟΣ Σ.", "İstanbul ǅ ﬃ", "\ufeffa\ufeff b\u200dc", "\U00020000\U00020bb7a", "a\u0085b\u00a0c\u1680d"),
    *("\x01a", "\u0301a", "\n\na", "``a", "e\u0301 a", "aab"),
    *("x\U0001d7d9٣²½Ⅷ", "'ſ 'S 'LL K", "a++b aaab 110 ss", "Hello world, again", "don't do not do n't 's", "``a''"),
    *(
        "<s>x</s> <s> y",
        " [tool]  z[tool]",
        "word<w>word <w> _<w>",
        "\n<l> a <l>\n",
        "a\r\nb\rc\n",
        "ab" * 40,
        "\0a\x01\x7f",
    ),
]


def regex(expression: str) -> Part:
    return {"Regex": expression}


def split(pattern: Part, behavior: str, invert: bool = False) -> Part:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def metaspace(scheme: str, splits: bool = True, **more: Any) -> Part:
    return {"type": "Metaspace", "replacement": SPACES, "prepend_scheme": scheme, "split": splits, **more}


def by_bytes(prefix: bool, use_regex: bool) -> Part:
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def replace(pattern: Part, put: str) -> Part:
    return {"type": "Replace", "pattern": pattern, "content": put}


def strip(left: bool, right: bool) -> Part:
    return {"type": "Strip", "strip_left": left, "strip_right": right}


def bert(clean: bool, chinese: bool, accents: bool | None, lower: bool) -> Part:
    flags = {"clean_text": clean, "handle_chinese_chars": chinese, "strip_accents": accents, "lowercase": lower}
    return {"type": "BertNormalizer", **flags}


PATTERNS = {
    "string": {"String": " "},
    "no string": {"String": ""},
    "word": regex(r"\w+"),
    "space": regex(r"\s"),
    "nothing": regex("x*"),
    "groups": regex("(a)|(b)"),
    "before": regex("(?=[A-Z])"),
}
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
EXPRESSIONS = (
    *(CL100K, r"\d+", r"\b", r"\W+", ".+", "^.*$", r"\A\s+|\s+\z", "a++b|[a-z]++|(?>\\d+)0?", "(?i:[sk]+|'s|'ll)"),
    *(r"[^\W\d_]+", r"\h+", r"\x{41}|\u0042", r"\p{Han}+|\p{Alphabetic}+", r"[\p{L}&&[^a-m]]+", r"(?<!a)b|c(?!d)"),
    *(f"[[:{name}:]]+" for name in ("alpha", "digit", "alnum", "upper", "lower", "space", "word", "punct", "xdigit")),
)

PRE_TOKENIZERS: dict[str, Part | None] = {
    "none": None,
    **{
        name: {"type": name}
        for name in ("BertPreTokenizer", "Punctuation", "Whitespace", "WhitespaceSplit", "FixedLength")
    },
    **{f"Digits {each}": {"type": "Digits", "individual_digits": each} for each in (True, False)},
    **{f"ByteLevel {p} {r}": by_bytes(p, r) for p in (True, False) for r in (True, False)},
    "CharDelimiterSplit": {"type": "CharDelimiterSplit", "delimiter": "a"},
    "FixedLength 3": {"type": "FixedLength", "length": 3},
    **{f"Metaspace {s} {c}": metaspace(s, c) for s in ("always", "first", "never") for c in (True, False)},
    "Metaspace of old": {"type": "Metaspace", "replacement": "_", "add_prefix_space": True, "str_rep": "x"},
    "Metaspace behind": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "WhitespaceSplit"},
            metaspace("first"),
            {"type": "Digits", "individual_digits": True},
        ],
    },
    **{f"Punctuation {each}": {"type": "Punctuation", "behavior": each} for each in BEHAVIORS},
    **{
        f"Split {name} {behavior} {invert}": split(pattern, behavior, invert)
        for name, pattern in PATTERNS.items()
        for behavior in BEHAVIORS
        for invert in (False, True)
    },
    **{f"Split {each}": split(regex(each), "Isolated") for each in EXPRESSIONS},
}


@cache
def charsmap() -> str:
    found: str = json.loads(CHARSMAP.read_text())["precompiled_charsmap"]
    return found


NORMALIZERS: dict[str, Part] = {
    **{
        name: {"type": name} for name in ("Lowercase", "Nmt", "StripAccents", "ByteLevel", "NFC", "NFD", "NFKC", "NFKD")
    },
    **{f"Strip {left} {right}": strip(left, right) for left in (True, False) for right in (True, False)},
    "Prepend": {"type": "Prepend", "prepend": SPACES},
    "Prepend to nothing": {"type": "Sequence", "normalizers": [strip(True, True), {"type": "Prepend", "prepend": "▁"}]},
    "Replace by $": replace({"String": " "}, "$&$1▁$$"),
    "Replace regex": replace(regex(r"(\s)+"), "$1"),
    "Replace by nothing": replace({"String": "``"}, ""),
    "clean": bert(True, False, False, False),
    "Chinese": bert(False, True, False, False),
    "accents": bert(False, False, True, False),
    "lowercase": bert(False, False, False, True),
    "lowercase and accents": bert(True, True, None, True),
    "neither": bert(True, True, None, False),
    "Precompiled": {"type": "Precompiled", "precompiled_charsmap": charsmap()},
}


def template(single: list[Part], special: dict[str, list[int]]) -> Part:
    tokens = {name: {"id": name, "ids": ids, "tokens": [name] * len(ids)} for name, ids in special.items()}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [sequence("A"), sequence("B")],
        "special_tokens": tokens,
    }


def sequence(name: str) -> Part:
    return {"Sequence": {"id": name, "type_id": 0}}


def special(name: str) -> Part:
    return {"SpecialToken": {"id": name, "type_id": 0}}


POST: dict[str, Part] = {
    "BertProcessing": {"type": "BertProcessing", "sep": ["nowhere", 5], "cls": ["nowhere", 3]},
    "RobertaProcessing": {
        "type": "RobertaProcessing",
        "sep": ["a", 5],
        "cls": ["b", 3],
        "trim_offsets": True,
        "add_prefix_space": False,
    },
    "ByteLevel": by_bytes(True, True),
    "several ids": template([special("x"), sequence("A"), special("y")], {"x": [1, 1, 4], "y": [9]}),
    "Sequence": {
        "type": "Sequence",
        "processors": [by_bytes(True, True), template([special("x"), sequence("A")], {"x": [7]})],
    },
}

DECODERS: dict[str, Part | None] = {
    "none": None,
    **{name: {"type": name} for name in ("ByteFallback", "Fuse")},
    "ByteLevel": by_bytes(True, True),
    **{f"Metaspace {scheme}": metaspace(scheme) for scheme in ("always", "first", "never")},
    **{f"BPEDecoder {suffix}": {"type": "BPEDecoder", "suffix": suffix} for suffix in ("</w>", "a", "")},
    **{
        f"WordPiece {prefix} {cleanup}": {"type": "WordPiece", "prefix": prefix, "cleanup": cleanup}
        for prefix in ("##", "")
        for cleanup in (True, False)
    },
    **{
        f"CTC {cleanup}": {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": cleanup}
        for cleanup in (True, False)
    },
    **{
        f"Strip {start} {stop}": {"type": "Strip", "content": "a", "start": start, "stop": stop}
        for start in (0, 1, 3)
        for stop in (0, 1, 3)
    },
    "Replace by $": replace({"String": "▁"}, "$& "),
    "Replace regex": replace(regex("a+|^b"), "$1"),
    "BPEDecoder of nothing": {
        "type": "Sequence",
        "decoders": [replace({"String": "aa"}, ""), {"type": "BPEDecoder", "suffix": ""}],
    },
    "Llama 2": {
        "type": "Sequence",
        "decoders": [
            *(replace({"String": "▁"}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}),
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
}

TOKENS = (
    *("▁", "▁▁", "▁a", "a▁b", "aa", "aaa", "aaaa", "ba", "##a", "##", "a##b", "a</w>", "</w>", "b</w>a", "<pad>", "|"),
    *(
        "A|B",
        " .",
        "n't",
        " 's",
        " do not",
        "do",
        "not",
        ".",
        ",",
        "'",
        "Ġthe",
        "é",
        "Ã",
        "©",
        "Ļ",
        "ÃĤ",
        "漢",
        "\U0001f600",
    ),
    *(
        "<0xEF>",
        "<0xBB>",
        "<0xBF>",
        "<0xC3>",
        "<0xA9>",
        "<0x0A>",
        "<0xG1>",
        "<0xff>",
        "<0x+1>",
        "<0x1>",
        "\ufeff",
        "ï",
        "»",
        "¿",
    ),
    *("ðŁĺĢ", "ðŁ", "ĺĢ", "\0", "\n", "$", "$&", "▁é▁"),
)

ADDED: dict[str, list[Part]] = {
    f"{w} {left} {right} {n}": [
        {
            "id": place,
            "content": text,
            "single_word": w,
            "lstrip": left,
            "rstrip": right,
            "normalized": n,
            "special": place % 2 > 0,
        }
        for place, text in enumerate(("<w>", "<l>", "[tool]", "a", "ab", "Hello", " y", "É", "<s>"))
    ]
    for w in (True, False)
    for left in (True, False)
    for right in (True, False)
    for n in (True, False)
}


@cache
def pieces() -> Part:
    """Byte pair encoding without merges."""
    alphabet = sorted({*map(chr, range(0x250)), *"".join(TEXTS), *SPACES})
    ids = {token: id_ for id_, token in enumerate([*alphabet, *("##" + each for each in alphabet), "[UNK]"])}
    return {"type": "BPE", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": ids, "merges": []}


def content(**parts: Any) -> Part:
    """A tokenizer.json with these parts, and none of the others."""
    names = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    return {
        "version": "1.0",
        **dict.fromkeys(names),
        "added_tokens": [],
        "model": parts.get("model") or pieces(),
        **parts,
    }


def with_added(tokens: list[Part], **parts: Any) -> Part:
    """Such a file with added tokens, whose ids are those of the vocabulary or follow them."""
    made = content(**parts)
    ids = made["model"]["vocab"]
    new = iter(range(len(ids), len(ids) + len(tokens)))
    made["added_tokens"] = [
        {**each, "id": ids[each["content"]] if each["content"] in ids else next(new)} for each in tokens
    ]
    return made


def bpe(alphabet: str, **fields: Any) -> Part:
    prefix, suffix = fields.get("continuing_subword_prefix") or "", fields.get("end_of_word_suffix") or ""
    tokens = [*alphabet, *(prefix + each for each in alphabet), *(each + suffix for each in alphabet)]
    tokens += [prefix + each + suffix for each in alphabet]
    merges = [["a", prefix + "b"], [prefix + "a", prefix + "b"], [prefix + "b", prefix + "a" + suffix]]
    merges += [["ab", prefix + "ab"], [prefix + "l", prefix + "l"], ["l", prefix + "l"], [prefix + "o", prefix + " "]]
    tokens += [left + right.removeprefix(prefix) for left, right in merges]
    tokens += ["[UNK]", "Hello", "the", *(fields.pop("more", ()))]
    ids = {token: id_ for id_, token in enumerate(dict.fromkeys(tokens))}
    return {"type": "BPE", "vocab": ids, "merges": merges, **fields}


LETTERS = "abcdefghijlmnoprstuvwxyz HTW.,'\n"
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def unigram(unknown: int | None, *more: str, **fields: Any) -> Part:
    draw = random.Random(3)
    words = ("▁", "▁a", "ab", "aba", "▁the", "he", "ll", "llo", "▁Hello", "or", "▁w", "ing", "漢", "a漢", "aa", "aaa")
    tokens = ["<unk>", *LETTERS, *words, *more]
    scored = [[token, round(-draw.random() * 8, 1)] for token in dict.fromkeys(tokens)]
    return {"type": "Unigram", "unk_id": unknown, "vocab": scored, **fields}


MODELS: dict[str, Part] = {
    "BPE that drops": bpe(LETTERS),
    "BPE that drops at an end": bpe(LETTERS, end_of_word_suffix="</w>"),
    **{f"BPE fuse_unk {each}": bpe(LETTERS, unk_token="[UNK]", fuse_unk=each) for each in (True, False)},
    "BPE ignore_merges": bpe(LETTERS, unk_token="[UNK]", ignore_merges=True),
    "BPE prefix": bpe(LETTERS, unk_token="[UNK]", continuing_subword_prefix="##"),
    "BPE prefix and suffix": bpe(LETTERS, continuing_subword_prefix="##", end_of_word_suffix="</w>"),
    "BPE bytes": bpe(LETTERS, byte_fallback=True, more=BYTES),
    "BPE some bytes": bpe(LETTERS, byte_fallback=True, unk_token="[UNK]", fuse_unk=True, more=BYTES[:200]),
    "BPE merges in strings": {**bpe(LETTERS), "merges": ["a b", "l l"]},
    "BPE without a type": {name: each for name, each in bpe(LETTERS, dropout=None).items() if name != "type"},
    "Unigram": unigram(0),
    "Unigram bytes": unigram(0, *BYTES, byte_fallback=True),
    "Unigram some bytes": unigram(0, *BYTES[:200], byte_fallback=True),
    "Unigram unknown that is known": unigram(3),
    "WordLevel": {"type": "WordLevel", "unk_token": "q", "vocab": {"q": 4, "the": 9, "Hello": 2, "a": 1, "it": 0}},
    "WordPiece": {
        "type": "WordPiece",
        "unk_token": "q",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 9,
        "vocab": {
            t: i
            for i, t in enumerate(["q", "the", "t", "##h", "##he", "a", "##b", "##a", "ab", "##abab", "漢", "##字"])
        },
    },
}

UNKNOWN: dict[str, tuple[Part, str]] = {
    "a type of normalizer": (
        {"normalizer": {"type": "Reverse"}},
        "normalizer: type is .Reverse., and the page knows Bert",
    ),
    "one of later": ({"normalizer": {"type": "Lowercase", "locale": "tr"}}, "normalizer: .locale. is no field that"),
    "scripts": ({"pre_tokenizer": {"type": "UnicodeScripts"}}, "pre_tokenizer: type is .UnicodeScripts., and the page"),
    "within": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Chunks"}]}},
        r"pre_tokenizer.pretokenizers\[0\]: type is .Chunks.",
    ),
    "a pattern": (
        {"pre_tokenizer": split(regex(r"\X"), "Isolated")},
        "pre_tokenizer.pattern: Invalid regular expression",
    ),
    "ligatures": (
        {"pre_tokenizer": split(regex("(?i:stop)"), "Isolated")},
        "pattern: st, also a ligature, cannot be in a group",
    ),
    "properties without case": ({"pre_tokenizer": split(regex(r"(?i:\p{Lu})"), "Isolated")}, "in a group without case"),
    "no length": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "pre_tokenizer: length is 0"),
    "the first of pieces of a normalized text": (
        {"normalizer": {"type": "NFC"}, "pre_tokenizer": PRE_TOKENIZERS["Metaspace behind"]},
        "Metaspace with the scheme first behind another part does not go with a normalizer",
    ),
    "the first of pieces of a longer text": (
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    metaspace("first"),
                    split(regex(r"\w+"), "MergedWithNext"),
                    metaspace("first", False),
                ],
            }
        },
        "Metaspace with the scheme first behind another part does not go with a part that adds to the text",
    ),
    "two post-processors": (
        {"post_processor": {"type": "Sequence", "processors": [POST["several ids"], POST["BertProcessing"]]}},
        "post_processor: the page knows sequences in which one part",
    ),
    "a decoder": (
        {"decoder": {"type": "Sequence", "decoders": [{"type": "Pad"}]}},
        r"decoder.decoders\[0\]: type is .Pad.",
    ),
    "a template": (
        {"post_processor": template([sequence("A"), sequence("A")], {})},
        "post_processor.single: the page knows",
    ),
    "a field of the model": ({"model": {**bpe("ab"), "cache": 3}}, "model: .cache. is no field"),
}


def rows(vocabulary: int) -> list[list[int]]:
    """Rows of ids to decode, some of them beside each other in the vocabulary."""
    draw = random.Random(11)
    made = [[draw.randrange(vocabulary) for _ in range(draw.randint(1, 12))] for _ in range(300)]
    starts = range(vocabulary - 3)
    return [*made, *([*range(start, start + 3), draw.randrange(vocabulary)] for start in starts)]
