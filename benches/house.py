"""The size of the product and of its tests at commits: code lines by room, and the files that spell an option.

usage: python3 benches/house.py [COMMIT ...]

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
OPTIONS = {
    "load option": ("kv_cache_dtype", "kvCacheDtype"),
    "load option, a flag": ("disable_file_mapped_weights", "disableFileMappedWeights"),
    "search option": ("no_repeat_ngram_size", "noRepeatNgramSize"),
    "stage": ("min_p", "minP"),
    "error": ("StorageError",),
}
"""Names that a part of the product has, by the recipe that added it."""


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


def spelled(files: dict[str, bytes], names: tuple[str, ...]) -> int:
    """The number of product files that hold one of the names."""
    words = [name.encode() for name in names]
    return sum(
        any(word in content for word in words) for path, content in files.items() if path.split("/")[0] in PRODUCT
    )


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
    head = " | ".join(git("rev-parse", "--short", commit).decode().strip() for commit in commits)
    for title, table in (
        ("code lines", {**totals, **rows}),
        (
            "product files that spell it",
            {what: [spelled(each, names) for each in files] for what, names in OPTIONS.items()},
        ),
    ):
        print(f"| {title} | {head} |\n|{' --- |' * (len(commits) + 1)}")
        for name, numbers in table.items():
            print(f"| {name} | {' | '.join(map(str, numbers))} |")
        print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or ["HEAD"]))
