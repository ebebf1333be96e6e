"""Lists the pre-tokenizers that GGUF files name: llama.cpp's regular expressions, in the syntax of a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["IGNORES_MERGES", "PRE_TOKENIZERS"]

# The white space of Unicode, spelled out, because \\s differs between libraries of regular expressions.
SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
CONTRACTIONS = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
# llama.cpp's expression lacks the last alternative, which matches the rest, so that a search reads no space twice.
GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+| ?[^{SPACE}\p{{L}}\p{{N}}]+|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+"

BLANKS = rf"[{SPACE}]*[\r\n]+|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+"
OTHERS = rf" ?[^{SPACE}\p{{L}}\p{{N}}]+"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
WORDS = rf"(?:{CONTRACTIONS})|{LETTERS}|\p{{N}}%s|{OTHERS}[\r\n]*|{BLANKS}"
SEED = rf"(?:{CONTRACTIONS})|{LETTERS}|\p{{N}}| ?[^{SPACE}\p{{L}}\p{{N}}\r\n]+|{BLANKS}"
MARKED = (
    rf"(?:{CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^{SPACE}\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{BLANKS}"
)
# llama.cpp knows only the case of ASCII letters: other letters may occur in both parts of a word.
UPPER, LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = rf"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*|\p{{N}}|{OTHERS}[\r\n/]*|{BLANKS}"
GPT4O = (
    rf"{BEFORE}{UPPER}*{LOWER}+(?:{CONTRACTIONS})?|{BEFORE}{UPPER}+{LOWER}*(?:{CONTRACTIONS})?|\p{{N}}{{1,3}}"
    rf"|{OTHERS}[\r\n/]*|{BLANKS}"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{BLANKS}"
)
# From U+0800 to U+9FA5, and Hangul: in sets without a property, white space beyond ASCII is \\v for llama.cpp.
IDEOGRAPHS = (
    "[\u0800-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\u9fa5\uac00-\ud7ff]+"
)
CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)

NAMES: Mapping[tuple[str, ...], str] = {
    (
        WORDS % "{1,3}",
    ): "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe chatglm-bpe glm4",
    (WORDS % "",): "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan grok-2",
    (MARKED,): "qwen35",
    (GPT4O,): "gpt-4o llama4",
    (TEKKEN,): "tekken",
    (SEED,): "seed-coder",
    (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK): "deepseek-v3 hunyuan-dense",
    (
        r"[\r\n]",
        rf"[{SPACE}]?[{CASED_LETTERS}]+",
        rf"[{SPACE}]?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+",
        rf"[{SPACE}]+\z",
        IDEOGRAPHS,
        r"\p{N}+",
    ): "deepseek-llm",
    (r"[\r\n]", rf"[{SPACE}]?\p{{L}}+", rf"[{SPACE}]?\p{{P}}+", IDEOGRAPHS, r"\p{N}"): "deepseek-coder",
    (r"\p{N}", GPT2): "smollm starcoder refact codeshell exaone command-r minerva-7b",
    (GPT2,): "gpt-2 phi-2 mpt olmo jais exaone4 a.x-4.0 mellum gigachat granite-docling",
    (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"): "default",
}
PRE_TOKENIZERS = {name: expressions for expressions, names in NAMES.items() for name in names.split()}
"""The regular expressions of a pre-tokenizer in order: each cuts the pieces that the earlier ones left."""
IGNORES_MERGES = (
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "tekken",
)
"""Pre-tokenizers that look up whole words before merging. They also begin a text with bos."""
