"""The size of the product and of its tests at commits: code lines by room, and the files that a recipe touches.

usage: python3 benches/house.py [COMMIT ...]

A recipe of CONTRIBUTING.md is counted by an example: the product files that declare it, read it or are named after it.
`-` is a commit before the example. The last table has the files at the last commit.

Code lines are lines with something other than a comment, a docstring or blanks. A room is a folder of product.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("py_src", "web", "buildtools", "build.py")
SCRIPTS = (".ts", ".js", ".mjs", ".jsx", ".wgsl", ".css", ".html")
COMMENTS = re.compile(r"/\*.*?\*/|<!--.*?-->|(?<![:\"'`])//[^\n]*", re.S)
RECIPES = {
    "load option (2): prefix_cache": r"[\"']prefix_cache[\"']|\bprefix_cache:|prefixCache\??:",
    "all that has to do with a load option: kv_cache_dtype": r"kv_cache_dtype|kvCacheDtype",
    "the same, a flag: disable_file_mapped_weights": r"disable_file_mapped_weights|disableFileMappedWeights",
    "run option (2): recoveries": r"[\"']recoveries[\"']|(?<!self\.)\brecoveries[:?]|params\.recoveries",
    "search option and stage (2): bad_words_ids": r"bad_words\b|bad_words_ids|BadWords",
    "the same, with a field of the demo: min_p": r"min_p\b|minP\b|MinP|min-p",
    "operation (3): prefill_attention": r"PrefillAttentions|[\"']prefill_attention[\"']|/prefill_attention\.\w+$",
    "family by its name (1): ernie4_5": r"ernie4_5",
    "JavaScript method (3): store_tape": r"store_tape|storeTape",
    "error (2): TapeKeyError": r"\"TapeKeyError\"|(class|raise) TapeKeyError",
    "input provider (1): WindowBase": r"\bWindowBase\b",
}
"""An example of each recipe, with the number of files that it should touch, and the pattern that finds them by their
text or path."""


def git(*words: str) -> bytes:
    """Run a git command in the checkout, and return its output."""
    return subprocess.run(["git", "-C", ROOT, *words], check=True, stdout=subprocess.PIPE).stdout


def contents(commit: str) -> dict[str, bytes]:
    """The files of product, tests and benches at a commit, by path."""
    names = git("ls-tree", "-r", "--name-only", "-z", commit, "--", *PRODUCT, "tests", "benches").decode().split("\0")
    wanted = [name for name in names if name.endswith((".py", *SCRIPTS))]
    asked = "".join(f"{commit}:{name}\n" for name in wanted).encode()
    command = ["git", "-C", ROOT, "cat-file", "--batch"]
    answer = io.BytesIO(subprocess.run(command, input=asked, check=True, stdout=subprocess.PIPE).stdout)
    found = {}
    for name in wanted:
        size = int(answer.readline().split()[2])
        found[name] = answer.read(size)
        answer.readline()
    return found


def python_lines(text: str) -> int:
    """Lines of Python code; a string that is a statement of its own is documentation."""
    lines: set[int] = set()
    begins = True
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in blank:
            continue
        if token.type == tokenize.NEWLINE:
            begins = True
            continue
        if not (begins and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
        begins = False
    return len(lines)


def code_lines(path: str, content: bytes) -> int:
    """Lines of code in a file."""
    text = content.decode()
    if path.endswith(".py"):
        return python_lines(text)
    return sum(bool(line.strip()) for line in COMMENTS.sub("", text).split("\n"))


def room(path: str) -> str:
    """The room of a file: a folder of a package, `web/src`'s folder, or the first folder."""
    parts = path.split("/")[:-1]
    if parts[:3] == ["web", "src", "worker"]:
        return "/".join(parts[:4])
    depth = 3 if parts[:2] in (["py_src", "capstan"], ["web", "src"], ["py_src", "capstan_host"]) else 2
    return "/".join(parts[: depth if parts[:1] in (["py_src"], ["web"]) else 1]) or path


def sizes(files: dict[str, bytes]) -> Counter[str]:
    """Code lines by room."""
    found: Counter[str] = Counter()
    for path, content in files.items():
        found[room(path)] += code_lines(path, content)
    return found


def touched(files: dict[str, bytes], example: str) -> list[str]:
    """The product files that mention an example."""
    found = re.compile(example)
    product = ((path, content) for path, content in files.items() if path.split("/")[0] in PRODUCT)
    return [path for path, content in product if found.search(path) or found.search(content.decode())]


def main(commits: list[str]) -> int:
    """Print both tables, with a column for each commit."""
    files = [contents(commit) for commit in commits]
    counts = [sizes(each) for each in files]
    rows = {name: [count[name] for count in counts] for name in sorted(set().union(*counts))}
    totals = {
        "product": [sum(n for name, n in count.items() if name.split("/")[0] in PRODUCT) for count in counts],
        "tests": [count["tests"] for count in counts],
        "product, files": [sum(path.split("/")[0] in PRODUCT for path in each) for each in files],
    }
    heads = [git("rev-parse", "--short", commit).decode().strip() for commit in commits]
    recipes = {name: [touched(each, example) for each in files] for name, example in RECIPES.items()}
    places = {name: [", ".join(found[-1])] for name, found in recipes.items()}
    for title, head, table in (
        ("code lines", heads, {**totals, **rows}),
        (
            "product files that have it",
            heads,
            {name: [len(n) or "-" for n in found] for name, found in recipes.items()},
        ),
        ("the files", heads[-1:], places),
    ):
        print(f"| {title} | {' | '.join(head)} |\n|{' --- |' * (len(head) + 1)}")
        for name, numbers in table.items():
            print(f"| {name} | {' | '.join(map(str, numbers))} |")
        print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or ["HEAD"]))
