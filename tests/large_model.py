"""A decoder whose weights are as large as wanted: nano-llama with more embedding tables, as Gemma 3n has them.

The tables are gathered and added to the embedding, so that a step costs little whatever their size. Only the rows of
the vocabulary hold numbers; the rest of a table is a hole in a sparse file with a stamp in each MiB, so that no two MiB
are the same and the file takes little of the disk. The ids depend on the number of tables and not on their size: the
oracle is asked about a small model of this kind.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

__all__ = ["TABLES", "least_megabytes", "make"]

NANO = Path(__file__).parent / "fixtures" / "nano-llama"
TABLES = 24
WIDTH, VOCAB = 64, 512
ROW_BYTES = 4 * WIDTH
MIB = 1 << 20
SCALE = 0.02
"""Standard deviation of the tables' rows: together about as large as nano-llama's own embeddings."""


def least_megabytes() -> int:
    """The smallest model that `make` makes, in MiB: each table holds the vocabulary and one stamp."""
    return TABLES


def make(folder: Path, megabytes: int, tables: int = TABLES) -> Path:
    """Write a model folder with `megabytes` MiB of weights, in `tables` tables of whole MiB, and return it."""
    table_bytes = megabytes // tables * MIB
    if table_bytes < MIB:
        raise ValueError(f"{megabytes} MiB in {tables} tables: each must have 1 MiB at least")
    shutil.copytree(NANO, folder)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    data = folder / "model.onnx.data"
    start = -(-data.stat().st_size // 4096) * 4096
    names = [f"model.embed_tokens_per_layer.{i}.weight" for i in range(tables)]
    for i, name in enumerate(names):
        table = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[table_bytes // ROW_BYTES, WIDTH])
        table.data_location = TensorProto.EXTERNAL
        place = {"location": data.name, "offset": start + i * table_bytes, "length": table_bytes}
        for key, value in place.items():
            table.external_data.add(key=key, value=str(value))
        model.graph.initializer.append(table)
    gather_tables(model, names)
    onnx.save(model, folder / "model.onnx")
    write_tables(data, start, table_bytes, tables)
    return folder


def gather_tables(model: onnx.ModelProto, names: list[str]) -> None:
    """Add the rows of the tables to the token embeddings."""
    nodes = list(model.graph.node)
    at = next(i for i, node in enumerate(nodes) if node.input and node.input[0] == "model.embed_tokens.weight")
    embedded = nodes[at].output[0]
    total = nodes[at].output[0] = embedded + "/before"
    added = []
    for i, name in enumerate(names):
        rows, after = f"/model/tables/{i}/rows", embedded if name == names[-1] else f"/model/tables/{i}/sum"
        added.append(helper.make_node("Gather", [name, "input_ids"], [rows], name=f"/model/tables/{i}/Gather"))
        added.append(helper.make_node("Add", [total, rows], [after], name=f"/model/tables/{i}/Add"))
        total = after
    del model.graph.node[:]
    model.graph.node.extend([*nodes[: at + 1], *added, *nodes[at + 1 :]])


def write_tables(data: Path, start: int, table_bytes: int, tables: int) -> None:
    """The vocabulary's rows at the head of each table, and a stamp at the end of each MiB."""
    random = np.random.default_rng(0)
    with data.open("r+b") as file:
        for table in range(tables):
            base = start + table * table_bytes
            file.seek(base)
            file.write((random.standard_normal((VOCAB, WIDTH)) * SCALE).astype(np.float32).tobytes())
            for block in range(table_bytes // MIB):
                file.seek(base + (block + 1) * MIB - 8)
                file.write(struct.pack("<II", table, block))
