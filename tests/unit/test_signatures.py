"""Public functions refuse arguments of wrong types with an error that names argument, value, type and remedy."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import capstan
from capstan import ArgumentTypeError, CapstanError, Generator, GeneratorParams, Model, Tokenizer, genai
from capstan import onnxruntime as ort
from capstan.guidance import Guidance
from capstan.memory import DeviceSpan
from capstan.signatures import checked, read_annotations
from capstan.stages.search import SearchOptions
from capstan_host.testing.pages import AppModel, PageModel
from tests.faults.arguments import VALUES, not_refused
from tests.onnx_models import model as onnx_model
from tests.unit.genai_cases import generator as genai_generator
from tests.unit.genai_cases import loaded

NANO = str(Path(__file__).parents[1] / "fixtures/nano-llama")


def test_every_wrong_type_of_every_public_function_is_refused_by_name() -> None:
    count, failures = asyncio.run(not_refused())
    assert failures == []
    assert count > 10000


OPEN: Any = Model
"""To the type checker, whose errors are meant here, a function of anything."""


def test_models_of_pages_check_their_arguments_as_the_class_of_both_does() -> None:
    for kind in (AppModel, PageModel):
        model = object.__new__(kind)
        for name, arguments, told in (
            ("answer", ("a", "x"), "tokens is 'x', of type str; give an integer"),
            ("answer", ({}, 1), "prompt is {}, of type dict; give a text or a list"),
            ("decode", ("a",), "ids is 'a', of type str"),
        ):
            with pytest.raises(ArgumentTypeError, match=rf"^{kind.__name__}\.{name}: {told}"):
                getattr(model, name)(*arguments)


def test_a_refusal_has_the_argument_its_value_its_type_and_what_to_give() -> None:
    generator: Any = object.__new__(Generator)
    tokenizer: Any = object.__new__(Tokenizer)
    refused: list[tuple[Callable[[], object], str]] = [
        (
            lambda: generator.rewind_to("five"),
            "Generator.rewind_to: new_length is 'five', of type str; give an integer",
        ),
        (
            lambda: tokenizer.encode_batch(["a", 5]),
            "Tokenizer.encode_batch: texts is ['a', 5], of type list; give a list in which each item is a text",
        ),
        (
            lambda: OPEN(NANO, overlay={5: 5}),
            "Model: overlay is {5: 5}, of type dict; give a dict in which each key is a text or None",
        ),
        (
            lambda: OPEN(NANO, passes="dead"),
            "Model: passes is 'dead', of type str; give a list in which each item is a text or None",
        ),
    ]
    for use, told in refused:
        with pytest.raises(ArgumentTypeError) as error:
            use()
        assert str(error.value) == told


def test_annotations_that_were_read_beforehand_are_not_read_at_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def rewind(new_length: int) -> int:
        return new_length

    public = checked(rewind, "rewind")
    read_annotations()

    def read_again(*_: Any, **__: Any) -> Any:
        raise AssertionError("read again")

    monkeypatch.setattr(inspect, "signature", read_again)
    assert public(5) == 5
    with pytest.raises(ArgumentTypeError, match="new_length is 'five'"):
        public("five")


def test_what_python_takes_for_a_type_is_taken() -> None:
    numbers: Any = np
    with closing(Model(NANO, device="reference")) as model, Generator(model) as generator:
        generator.append_tokens(np.array([5, 6, 7]))
        generator.rewind_to(numbers.int64(2))
        generator.set_logits(numbers.zeros(512, np.float32))
        tokenizer = Tokenizer(model)
        assert tokenizer.decode(iter([212])) == tokenizer.decode(numbers.array([212])) == tokenizer.decode((212,))
        tokenizer.apply_chat_template([], template_str="x", add_generation_prompt=numbers.bool_(True))


def test_signatures_and_coroutine_functions_look_as_they_are_written() -> None:
    assert str(inspect.signature(Generator.rewind_to)) == "(self, new_length: 'int') -> 'None'"
    assert inspect.iscoroutinefunction(Generator.set_logits_async)
    assert not inspect.iscoroutinefunction(Generator.set_logits)


def uses(model: Model, native: genai.Model, session: ort.InferenceSession) -> dict[str, Callable[[Any], object]]:
    """Functions that take anything by their annotation, or values in a structure, and look at it themselves."""
    config, tokenizer, params = genai.Config(NANO), genai.Tokenizer(native), genai.GeneratorParams(native)
    capstan_tokenizer = Tokenizer(model)
    one = genai_generator(genai)

    def search(name: str) -> Callable[[Any], object]:
        return lambda value: GeneratorParams(model).set_search_options(**{name: value})

    def options(name: str) -> Callable[[Any], object]:
        return lambda value: SearchOptions(**{name: value})

    found: dict[str, Callable[[Any], object]] = {
        "Model": lambda value: Model(value, device="reference"),
        "plan": lambda value: asyncio.run(capstan.plan(value, device="reference")),
        "an overlay": lambda value: Model(NANO, device="reference", overlay={"model": value, "search": value}),
        "an option of a provider": lambda value: config.overlay(repr(value)),
        "a graph": lambda value: Model(NANO, device="reference", graphs={"model.onnx": value}),
        "append_tokens": lambda value: Generator(model).append_tokens(value),
        "decode": lambda value: capstan_tokenizer.decode([value]),
        "a message": lambda value: capstan_tokenizer.apply_chat_template(
            [{"role": value}], template_str="{{messages}}"
        ),
        "update_options": lambda value: capstan_tokenizer.update_options(add_special_tokens=value),
        "genai append_tokens": lambda value: genai_generator(genai, value),
        "genai decode": tokenizer.decode,
        "genai set_logits": one.set_logits,
        "genai set_model_input": lambda value: one.set_model_input("x", value),
        "Tensor": genai.Tensor,
        "NamedTensors": lambda value: genai.NamedTensors().__setitem__("x", value),
        "begin_turn": lambda value: genai.Engine(native).create_request().begin_turn(value),
        "set_speculative_options": lambda value: params.set_speculative_options(ngram_size=value),
        "set_log_options": lambda value: genai.set_log_options(warning=value, filename=value),
        "genai search": lambda value: params.set_search_options(top_k=value, min_p=value),
        "Guidance": lambda value: Guidance(value, value),
        "HubRepository": lambda value: capstan.HubRepository(value, value),
        "a revision": lambda value: capstan.HubRepository("a/b", "https://hub", value, value),
        "Speculation": lambda value: capstan.Speculation(value),
        "drafts": lambda value: capstan.Speculation(3, value, value, value),
        "DeviceSpan": lambda value: DeviceSpan(value, value, value),
        "an element type": lambda value: ort.OrtValue.ortvalue_from_shape_and_type([2], value),
        "an array": ort.OrtValue.ortvalue_from_numpy,
        "a provider": lambda value: ort.InferenceSession(onnx_model("affine"), providers=[value]),
        "a provider's options": lambda value: ort.InferenceSession(onnx_model("affine"), providers=[("cpu", value)]),
        "a feed": lambda value: session.run(None, {"x": value}),
        "an output": lambda value: session.run(None, {"x": np.zeros((2, 3), "f4")}, out={"y": value}),
        "a bound array": lambda value: session.io_binding().bind_cpu_input("x", value),
        "a bound buffer": lambda value: session.io_binding().bind_input("x", "cpu", 0, "float32", [2, 3], value),
        "a bound type": lambda value: session.io_binding().bind_output("y", "cpu", 0, value, [2, 3], value),
        "update_inplace": lambda value: ort.OrtValue.ortvalue_from_numpy(np.zeros(2, "f4")).update_inplace(value),
        "numpy": lambda value: ort.OrtValue.ortvalue_from_numpy(np.zeros(2, "f4")).numpy(out=value),
    }
    found |= {f"search {name}": search(name) for name in SearchOptions.names()}
    return found | {f"SearchOptions.{field.name}": options(field.name) for field in fields(SearchOptions)}


def hostile(random: Random, depth: int = 0) -> Any:
    """A value of any kind, or some in a structure."""
    kind = random.randrange(4 if depth < 3 else 1)
    if kind == 0:
        return random.choice(VALUES)
    items = [hostile(random, depth + 1) for _ in range(random.randrange(4))]
    if kind == 1:
        return items
    return tuple(items) if kind == 2 else {random.choice(("x", 5, None)): item for item in items}


def test_what_takes_anything_raises_errors_of_ours_alone() -> None:
    native, random, failures = loaded(genai), Random(27), []
    session = ort.InferenceSession(onnx_model("affine"))
    with closing(Model(NANO, device="reference")) as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, use in uses(model, native, session).items():
            for value in [*VALUES, *(hostile(random) for _ in range(8))]:
                try:
                    use(value)
                except CapstanError:
                    pass
                except Exception as error:
                    failures.append(f"{name}({value!r:.60}): {type(error).__name__}: {error}")
    session.close()
    assert failures == []
