"""The one ordered list of graph passes: its users, and its result for a model."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest

from capstan import graph
from capstan.graph.graph_passes import PASSES, Made, rewritten
from capstan.graph.rewriting import Rewriting
from capstan.model_files.genai_config_file import parse_genai_config

SOURCES = Path(__file__).parents[2] / "py_src" / "capstan"
FIXTURES = Path(__file__).parents[1] / "fixtures"
NO_CONFIG = ("session", "session on buffers")
BEFORE: dict[Made, tuple[Made, ...]] = {
    "decode": ("webgpu",),
    "captured prefill": ("webgpu", "decode"),
    "prefill": ("webgpu", "decode", "captured prefill"),
    "session on buffers": ("session",),
}
"""The graphs that are made before one."""
LAYERS = [made for made in get_args(Made) if made.startswith("layers")]
CHANGED = ("decode", "session on buffers", "captured prefill", "prefill", "wasm", *LAYERS)
"""The graphs that differ from the one that they are made of; the model builder has done the work of other passes."""


def test_passes_have_names_of_their_own_and_every_graph_has_passes() -> None:
    names = [each.name for each in PASSES]
    assert len(set(names)) == len(names)
    assert set().union(*(each.graphs for each in PASSES)) == set(get_args(Made))


def test_only_the_list_runs_passes() -> None:
    """Elsewhere no rewrite is called: each name of a pass is read in `graph` alone."""
    rewrites = {each.name for each in PASSES} - {"describe"}
    found = [
        f"{path.relative_to(SOURCES)}: {name}"
        for path in SOURCES.rglob("*.py")
        if path.parent.name != "graph"
        for node in ast.walk(ast.parse(path.read_text()))
        for name in [node.attr if isinstance(node, ast.Attribute) else node.name if isinstance(node, ast.alias) else ""]
        if name in rewrites
    ]
    assert found == []


@pytest.mark.parametrize("made", get_args(Made))
def test_the_model_stays_as_it_is(made: Made) -> None:
    folder = FIXTURES / "nano-llama"
    config = parse_genai_config((folder / "genai_config.json").read_bytes())
    facts = Rewriting(None if made in NO_CONFIG else config)
    model = graph.parse((folder / "model.onnx").read_bytes())
    for each in BEFORE.get(made, ()):
        model = rewritten(model, each, facts)
    before = graph.serialize(model)
    found = rewritten(model, made, facts)
    assert graph.serialize(model) == before
    assert (graph.serialize(found) != before) is (made in CHANGED)


@pytest.mark.parametrize("name", ["nano-llama", "nano-gemma2", "nano-lora", "nano-qdq"])
def test_a_model_that_is_changed_becomes_the_same_graphs(name: str) -> None:
    folder = FIXTURES / name
    config = parse_genai_config((folder / "genai_config.json").read_bytes())
    order: tuple[Made, ...] = ("webgpu", "decode", "captured prefill", "prefill")
    model = graph.parse((folder / "model.onnx").read_bytes())
    apart, made, facts = [], model, Rewriting(config)
    for each in order:
        made = rewritten(made, each, facts)
        apart.append(graph.serialize(made))
    facts = Rewriting(config)
    with graph.changing(model):
        for each, expected in zip(order, apart, strict=True):
            made = rewritten(model, each, facts)
            assert made is model
            assert graph.serialize(model) == expected
