"""Random faults: small changes at random places of the product, from a seed, spread over its files by their lines."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["RandomFault", "python_faults", "sampled", "text_faults"]

RARE = {"string": 0.2}
"""How often a kind of change is drawn beside the others, which have 1."""
OTHER_COMPARISON = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "===": "!==", "!==": "==="}
OTHER_TEST = {"is": "is not", "is not": "is", "in": "not in", "not in": "in", **OTHER_COMPARISON}
OTHER_ARITHMETIC = {"+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "+", "<<": ">>", ">>": "<<"}
OTHER_WORD = {"and": "or", "or": "and", "&&": "||", "||": "&&", "True": "False", "False": "True"}
OTHER_WORD |= {"true": "false", "false": "true"}
SPACED = r"(?<= ){}(?= )"
"""An operator between spaces: a formatter puts them there, and angle brackets of types have none."""
TEXT_KINDS: dict[str, tuple[str, Callable[[str], str | None]]] = {
    "comparison": (SPACED.format(r"(?:[=!]==?|[<>]=?)"), OTHER_COMPARISON.get),
    "arithmetic": (SPACED.format(r"(?:<<|>>|[-+*/%])"), OTHER_ARITHMETIC.get),
    "logic": (r"&&|\|\|", OTHER_WORD.get),
    "flag": (r"\b(?:true|false)\b", OTHER_WORD.get),
    "number": (r"(?<![\w.])\d+(?=u?\b)(?!\.)", lambda text: str(int(text) + 1)),
    "statement": (r"(?m)(?<=  )(?:await )?[\w.]+\([^;{}\n]*\);$", lambda text: ";"),
}
NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`", re.DOTALL)


@dataclass(frozen=True)
class RandomFault:
    """Bytes `start` to `end` of `file`, which begin in `line`, become `instead`."""

    file: str
    line: int
    start: int
    end: int
    instead: str
    kind: str

    def mutated(self, source: bytes) -> bytes:
        return source[: self.start] + self.instead.encode() + source[self.end :]

    def described(self, source: bytes) -> dict[str, object]:
        """The fault as data, with the text that it replaces."""
        return {**asdict(self), "text": source[self.start : self.end].decode()}


def python_faults(file: str, source: bytes) -> list[RandomFault]:
    """Each change that could be made to the functions of a Python module."""
    return list(_Walk(file, source).faults())


def text_faults(file: str, source: bytes) -> list[RandomFault]:
    """Each change that could be made to TypeScript or WGSL, outside of comments and texts."""
    code = NOT_CODE.sub(lambda found: re.sub(r"[^\n]", "_", found[0]), source.decode("latin-1"))
    return [
        RandomFault(file, code.count("\n", 0, found.start()) + 1, found.start(), found.end(), instead, kind)
        for kind, (pattern, other) in TEXT_KINDS.items()
        for found in re.finditer(pattern, code)
        if (instead := other(found[0]))
    ]


def sampled(
    root: Path,
    files: Sequence[str],
    count: int,
    seed: int,
    faults_of: Callable[[str, bytes], list[RandomFault]],
    fits: Callable[[RandomFault], bool] = lambda fault: True,
) -> list[RandomFault]:
    """So many different faults of these files that fit; long files have more of them, and each kind of change has its
    share."""
    chance = random.Random(seed)
    sources = {file: (root / file).read_bytes() for file in files}
    weights = [source.count(b"\n") for source in sources.values()]
    left: dict[str, list[RandomFault]] = {}
    drawn: list[RandomFault] = []
    while len(drawn) < count and any(weights):
        place = chance.choices(range(len(files)), weights)[0]
        file = files[place]
        if file not in left:
            left[file] = faults_of(file, sources[file])
        if not left[file]:
            weights[place] = 0
            continue
        kinds = sorted({fault.kind for fault in left[file]})
        kind = chance.choices(kinds, [RARE.get(each, 1.0) for each in kinds])[0]
        fault = chance.choice([fault for fault in left[file] if fault.kind == kind])
        left[file].remove(fault)
        if fits(fault):
            drawn.append(fault)
    return drawn


class _Walk:
    """Goes through a module's code, without annotations, docstrings, protocols and what only a type checker reads."""

    def __init__(self, file: str, source: bytes) -> None:
        self._file = file
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def faults(self) -> Iterator[RandomFault]:
        return self._below(ast.parse(self._source))

    def _below(self, node: ast.AST) -> Iterator[RandomFault]:
        yield from self._of(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _left_out(child):
                    yield from self._below(child)

    def _of(self, node: ast.AST) -> Iterator[RandomFault]:
        match node:
            case ast.Compare(left=left, comparators=[right]):
                yield from self._between(left, right, "comparison", OTHER_TEST)
            case ast.BinOp(left=left, right=right):
                yield from self._between(left, right, "arithmetic", OTHER_ARITHMETIC)
            case ast.BoolOp(values=[first, second, *_]):
                yield from self._between(first, second, "logic", OTHER_WORD)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._whole(node, self._text(operand), "logic")
            case ast.Constant(value=bool()):
                yield self._whole(node, OTHER_WORD[self._text(node)], "flag")
            case ast.Constant(value=int() as number):
                yield self._whole(node, str(number + 1), "number")
            case ast.Constant(value=str()):
                yield self._whole(node, f"({self._text(node)} + 'x')", "string")
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield self._whole(test, f"(not ({self._text(test)}))", "condition")
            case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
                yield self._whole(node, "return None", "result")
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.AugAssign() | ast.Delete():
                yield self._whole(node, "pass", "statement")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield self._whole(node, "pass", "statement")
            case ast.Call(args=[first, second, *_]) if not isinstance(first, ast.Starred):
                between = self._source[self._end(first) : self._start(second)].decode()
                swapped = self._text(second) + between + self._text(first)
                yield self._fault(self._start(first), self._end(second), first, swapped, "arguments")

    def _between(self, left: ast.expr, right: ast.expr, kind: str, others: dict[str, str]) -> Iterator[RandomFault]:
        """The operator between two operands, which parentheses, comments and ends of lines may surround."""
        start, text = self._end(left), self._source[self._end(left) : self._start(right)].decode("latin-1")
        found = re.fullmatch(r"([\s)]*)(\S+(?: \S+)?)([\s(]*)", text)
        if found and found[2] in others:
            first, last = start + found.start(2), start + found.end(2)
            yield self._fault(first, last, left, others[found[2]], kind)

    def _whole(self, node: ast.AST, instead: str, kind: str) -> RandomFault:
        text = self._text(node)
        # The lines behind it keep their numbers.
        padded = instead + "\n" * (text.count("\n") - instead.count("\n"))
        return self._fault(self._start(node), self._end(node), node, padded, kind)

    def _fault(self, start: int, end: int, node: ast.AST, instead: str, kind: str) -> RandomFault:
        return RandomFault(self._file, node.lineno, start, end, instead, kind)  # type: ignore[attr-defined]

    def _text(self, node: ast.AST) -> str:
        return self._source[self._start(node) : self._end(node)].decode()

    def _start(self, node: ast.AST) -> int:
        return self._lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined, no-any-return]

    def _end(self, node: ast.AST) -> int:
        return self._lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined, no-any-return]


def _left_out(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.ClassDef(bases=bases):
            return any("Protocol" in ast.unparse(base) for base in bases)
        case ast.If(test=test):
            return "TYPE_CHECKING" in ast.unparse(test)
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
    return False
