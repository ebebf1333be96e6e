"""Bad input made of good input, by a random generator that a seed determines."""

from __future__ import annotations

import json
import re
import struct
from copy import deepcopy
from random import Random
from typing import Any

from capstan.graph.onnx_pb2 import ModelProto

__all__ = ["mutated_bytes", "mutated_gguf", "mutated_graph", "mutated_json", "mutated_name", "mutated_request"]

DEEP = 10_000
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**53 + 1, -(2**63), 2**64),
    *(10**30, "", "\0", "\ud800", "../x", "%2e%2e/x", "\t../x", "x" * 100_000, "9" * 5000, [], {}, [[]], [None], [1.5]),
    *({"": {}}, "webgpu", "%d", "%d%d", "%s" * 50, ["x"] * 1000, {"type": "llama"}),
)
BYTES = (
    b"\xff",
    b"\0",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b'"',
    b"\\",
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b"9" * 5000,
    b"\n",
)
NAME_PARTS = (
    *(
        "..",
        ".",
        "",
        "%2e%2e",
        "%2E.",
        ".%2e",
        "%252e%252e",
        "..%2f..",
        "..%5c..",
        "..\\..",
        "\t..",
        "..\t",
        ".\t.",
        "..\n",
    ),
    *("\0", "%00", " ", "..  ", "C:", "c:x", "//host", "http:", "\ud800", "%ed%a0%80", "é", "a", "onnx", "model.onnx"),
    *("~", "?x", "#x", ";x", "&", "%", "%zz", "\u2024\u2024", "\uff0e\uff0e", "\uff0f", "a" * 2000),
)


def mutated_bytes(random: Random, data: bytes) -> bytes:
    """The data with flipped bits, and with pieces deleted, doubled or inserted."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(made) + 1)
        match random.randrange(5):
            case 0 if made:
                at = min(at, len(made) - 1)
                made[at] ^= 1 << random.randrange(8)
            case 1:
                del made[at : at + random.choice((1, 10, 1000, len(made)))]
            case 2:
                made[at:at] = random.choice(BYTES)
            case 3:
                made[at:at] = made[at : at + random.randrange(1, 200)]
            case _:
                made[at : at + 8] = random.randbytes(8)
    return bytes(made)


NAMES = re.compile(rb"(?:general|llama|tokenizer|blk|token_embd|output_norm)\.[a-z0-9_.]+")
"""Keys and names of tensors in a GGUF file's header."""
LIES = (0, 1, 2, 3, 8, 9, 31, 255, 2**31, 2**32 - 1, 4 << 30, 2**53, 2**62, 2**63, 2**64 - 1)
"""Numbers for counts, lengths, types, dimensions and offsets in a GGUF file's header."""


def mutated_gguf(random: Random, data: bytes) -> bytes:
    """A GGUF file whose header has numbers that lie, or other bytes; sometimes one that ends early."""
    names = [*NAMES.finditer(data)]
    end = names[-1].end() + 32
    if random.random() < 0.3:
        return mutated_bytes(random, data[:end]) + data[end:]
    if random.random() < 0.1:
        return data[: random.randrange(len(data))]
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        name = random.choice(names)
        at = random.choice((4, 8, 16, name.start() - 8, *(name.end() + 4 * i for i in range(7))))
        lie = struct.pack("<Q", random.choice(LIES))[: random.choice((4, 8))]
        made[at : at + len(lie)] = lie
    return bytes(made)


def mutated_json(random: Random, data: bytes) -> bytes:
    """Values of a wrong type or size somewhere in the tree; sometimes text that is no JSON any more."""
    if random.random() < 0.25:
        return mutated_bytes(random, data)
    tree = json.loads(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        places = list(places_of(tree))
        if not places:
            break
        holder, key = random.choice(places)
        match random.randrange(5):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[random.choice(("", "x", "type", "é" * 1000))] = holder.pop(key)
            case _:
                holder[key] = deepcopy(random.choice(VALUES))
    text = json.dumps(tree, ensure_ascii=random.random() < 0.5)
    return text.encode(errors="surrogatepass")


def places_of(tree: Any) -> Any:
    """(container, key) of every value in a tree; of long arrays the first values."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:20]) if isinstance(tree, list) else ()
    for number, (key, value) in enumerate(list(items)):
        yield tree, key
        if number < 200:
            yield from places_of(value)


def mutated_graph(random: Random, data: bytes) -> bytes:
    """Fields of a graph that contradict others, or whose numbers cannot be; sometimes flipped bits of its file."""
    if random.random() < 0.3:
        return mutated_bytes(random, data)
    model = ModelProto()
    model.ParseFromString(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        change_graph(random, model.graph)
    return model.SerializeToString()


NUMBERS = (0, -1, 1, 3, 2**31, 2**40, 2**62, -(2**63), 2**63 - 1)
TEXTS = (
    "",
    "x",
    "\0",
    "9" * 5000,
    "-1",
    "1.5",
    "18446744073709551616",
    "../x",
    "%2e%2e/x",
    "٣",
    "x" * 100_000,
    "[" * DEEP,
)


def change_graph(random: Random, graph: Any) -> None:
    node = random.choice(graph.node)
    tensor = random.choice(graph.initializer)
    value = random.choice([*graph.input, *graph.output])
    match random.randrange(12):
        case 0 if tensor.dims:
            tensor.dims[random.randrange(len(tensor.dims))] = random.choice(NUMBERS)
        case 1:
            tensor.dims.extend(random.choice(NUMBERS) for _ in range(random.choice((1, 3, 300))))
        case 2 if tensor.external_data:
            random.choice(tensor.external_data).value = random.choice(TEXTS)
        case 3 if tensor.external_data:
            random.choice(tensor.external_data).key = random.choice((*TEXTS, "capstan.parts"))
        case 4:
            tensor.external_data.add(
                key="capstan.parts", value=random.choice((*TEXTS, "[[0,4]]", "[]", "[[1,2,3,4,5]]"))
            )
        case 5:
            tensor.data_type = random.choice((0, 1, 7, 8, 10, 16, 21, 99, -1))
        case 6:
            node.op_type = random.choice((*TEXTS, "If", "Loop", "MatMul", "GroupQueryAttention", "Add"))
        case 7 if node.input:
            node.input[random.randrange(len(node.input))] = random.choice((*TEXTS, "input_ids", node.output[0]))
        case 8 if node.attribute:
            item = random.choice(node.attribute)
            item.i = random.choice(NUMBERS)
            item.type = random.choice((0, 1, 2, 4, 7))
        case 9:
            graph.node.remove(node)
        case 10:
            del value.type.tensor_type.shape.dim[:]
            for _ in range(random.randrange(6)):
                value.type.tensor_type.shape.dim.add().dim_value = random.choice(NUMBERS)
        case _:
            value.name = random.choice((*TEXTS, "past_key_values.99999999999999999999.key", "logits", "input_ids"))


def mutated_name(random: Random, data: bytes) -> bytes:
    """A path of parts that may lead elsewhere."""
    del data
    parts = [random.choice(NAME_PARTS) for _ in range(random.randrange(1, 6))]
    return random.choice(("/", "/", "%2f", "\\")).join(parts).encode(errors="surrogatepass")


HEADERS = (
    *(
        "Host: localhost",
        "Host: attacker.example",
        "Host:",
        "Host: [::1",
        "Origin: null",
        "Origin: http://[",
        "Range: bytes=0-",
    ),
    *(
        "Range: bytes=" + "9" * 5000 + "-",
        "Range: bytes=--",
        "If-Range: x",
        "Content-Length: -1",
        "Content-Length: 5",
        "X: \xff",
    ),
    *(
        "Transfer-Encoding: chunked",
        "Connection: keep-alive",
        "no header",
        ": x",
        "X: " + "x" * 70_000,
        "If-None-Match: *",
    ),
)


def mutated_request(random: Random, data: bytes) -> bytes:
    """Bytes that a client may send to a server."""
    if random.random() < 0.2:
        return mutated_bytes(random, data)
    path = mutated_name(random, b"").decode(errors="surrogatepass")
    if random.random() < 0.5:
        path = "".join(f"%{byte:02x}" if random.random() < 0.5 else chr(byte) for byte in path.encode(errors="replace"))
    method = random.choice(("GET", "GET", "HEAD", "POST", "get", "", "G" * 70_000))
    prefix = random.choice(("/", "/", "", "/models/m/", "//", "http://attacker.example/"))
    version = random.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/9", "", "HTTP/1.1 x"))
    headers = random.sample(HEADERS, random.randrange(4))
    if random.random() < 0.7:
        headers.insert(0, HEADERS[0])
    lines = [f"{method} {prefix}{path} {version}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1", errors="replace")
