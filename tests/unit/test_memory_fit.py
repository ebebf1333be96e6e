"""Whether a model fits a device: each limit from both sides, and the largest max_length that fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from capstan import graph
from capstan.device.model_memory import requirements
from capstan.errors import OptionError, OutOfMemoryError
from capstan.graph import GraphDescription, SplitWeight, WeightEntry
from capstan.memory import Capabilities, MemoryRequirements, PoolSize, fits, plan
from capstan.model_files.genai_config_file import parse_genai_config

NANO = Path(__file__).parents[1] / "fixtures" / "nano-llama"
ROOMY = Capabilities("test", True, True, False, False, False, False, True, True, 1 << 28, 1 << 27, 256)
CACHE_BYTES = 2 * 16 * 4
"""Bytes of one layer's keys, for each position."""


@pytest.fixture(scope="module")
def described() -> tuple[GraphDescription, list[WeightEntry]]:
    model = graph.parse((NANO / "model.onnx").read_bytes())
    about = graph.describe(model, parse_genai_config((NANO / "genai_config.json").read_bytes()).decoder, 512)
    return about, graph.weights_to_inputs(model)[1]


@pytest.fixture(scope="module")
def largest_weight(described: tuple[GraphDescription, list[WeightEntry]]) -> int:
    return max(entry.length for entry in described[1])


class Asked:
    """Requirements by max_length, and the requested lengths."""

    def __init__(self, described: tuple[GraphDescription, list[WeightEntry]], batch_size: int = 1, step: int = 1):
        self.described, self.batch_size, self.step = described, batch_size, step
        self.lengths: list[int] = []

    def __call__(self, max_length: int) -> MemoryRequirements:
        self.lengths.append(max_length)
        about, weights = self.described
        capacity = -(-max_length // self.step) * self.step
        need = requirements(about, weights, batch_size=self.batch_size, max_length=capacity, chunk=64)
        return replace(need, max_length=max_length)


@pytest.fixture
def asked(described: tuple[GraphDescription, list[WeightEntry]]) -> Asked:
    return Asked(described)


def test_what_fits_has_no_reason(asked: Asked) -> None:
    fit = fits(asked(256), ROOMY)
    assert fit
    assert (fit.limit, fit.item, fit.reason) == (None, None, "")
    fit.require()


@pytest.mark.parametrize("limit", ["max_binding_size", "max_buffer_size"])
def test_a_tensor_may_be_as_large_as_the_limit_and_no_larger(asked: Asked, largest_weight: int, limit: str) -> None:
    size = 4096 * CACHE_BYTES
    assert size > largest_weight

    def allowing(most: int) -> Capabilities:
        if limit == "max_binding_size":
            return replace(ROOMY, max_binding_size=most)
        return replace(ROOMY, max_buffer_size=most)

    assert fits(asked(4096), allowing(size))
    fit = fits(asked(4096), allowing(size - 1))
    assert not fit
    assert (fit.limit, fit.value, fit.allowed) == (limit, size, size - 1)
    assert fit.item == "kv past_key_values.0.key"
    with pytest.raises(OutOfMemoryError) as caught:
        fit.require()
    said = str(caught.value)
    assert said.startswith(
        f"kv past_key_values.0.key takes {size} bytes with batch_size 1 and max_length 4096; webgpu allows {size - 1} "
    )
    assert ("maxStorageBufferBindingSize" if limit == "max_binding_size" else "maxBufferSize") in said
    assert said.endswith("; use a smaller max_length")


def test_the_limit_that_is_broken_most_is_named(asked: Asked) -> None:
    assert fits(asked(4096), replace(ROOMY, max_binding_size=10**5, max_buffer_size=10**4)).limit == "max_buffer_size"
    assert fits(asked(4096), replace(ROOMY, max_binding_size=10**4, max_buffer_size=10**5)).limit == "max_binding_size"


@pytest.mark.parametrize("length", [2000, 2001, 4095])
def test_the_largest_max_length_that_fits_is_found(
    asked: Asked, described: tuple[GraphDescription, list[WeightEntry]], largest_weight: int, length: int
) -> None:
    tight = replace(ROOMY, max_binding_size=length * CACHE_BYTES)
    assert tight.max_binding_size > largest_weight
    fit = plan(asked, 4096, tight)
    assert not fit
    assert fit.largest_max_length == length
    assert fit.reason.endswith(f"; use a max_length of at most {length}")
    assert fit.requirements.max_length == 4096
    assert len(asked.lengths) < 16
    assert plan(Asked(described), length, tight)
    assert not plan(Asked(described), length + 1, tight)


def test_the_largest_max_length_respects_how_capacities_are_rounded(
    described: tuple[GraphDescription, list[WeightEntry]],
) -> None:
    tight = replace(ROOMY, max_binding_size=2000 * CACHE_BYTES)
    assert plan(Asked(described, step=256), 4096, tight).largest_max_length == 1792


def test_what_fits_is_looked_for_up_to_the_context_length(asked: Asked) -> None:
    tight = replace(ROOMY, max_binding_size=2000 * CACHE_BYTES)
    assert plan(asked, 256, tight, at_most=4096).largest_max_length == 2000
    assert plan(asked, 256, tight, at_most=700).largest_max_length == 700
    assert plan(asked, 256, tight).largest_max_length == 256
    assert plan(asked, 256, tight, at_most=4096)


def test_weights_that_do_not_fit_fit_at_no_length(asked: Asked, largest_weight: int) -> None:
    fit = plan(asked, 256, replace(ROOMY, max_binding_size=largest_weight - 16))
    assert fit.largest_max_length == 0
    assert fit.reason.endswith("; use a smaller model, or one with fewer bits a weight")
    longer = plan(asked, 10**6, replace(ROOMY, max_binding_size=largest_weight - 16))
    assert longer.item == "kv past_key_values.0.key"
    assert longer.reason.endswith("; use a smaller model, or one with fewer bits a weight")


def test_a_batch_that_does_not_fit_at_length_one_is_too_large(
    described: tuple[GraphDescription, list[WeightEntry]],
) -> None:
    one, many = Asked(described)(1), Asked(described, batch_size=1000)
    fit = plan(many, 256, ROOMY, budget=many(1).total.bytes - 1)
    assert (fit.largest_max_length, fit.item) == (0, "persistent")
    assert fit.shortest is not None
    assert fit.shortest.item == "io"
    assert fit.shortest.value == one.weights.bytes + 1000 * (one.persistent.bytes + one.io.bytes)
    assert fit.reason.endswith("; use a smaller batch_size")


def test_rows_of_their_own_bind_no_more_than_one(described: tuple[GraphDescription, list[WeightEntry]]) -> None:
    """A limit of one binding is met by a batch of any size."""
    largest = max(item.bytes for item in Asked(described)(256).items)
    assert fits(Asked(described, batch_size=1000)(256), replace(ROOMY, max_buffer_size=largest))


def test_a_budget_limits_the_sum_of_all_pools(asked: Asked) -> None:
    total = asked(256).total.bytes
    assert fits(asked(256), ROOMY, budget=total)
    fit = plan(asked, 256, ROOMY, budget=total - 1)
    assert (fit.limit, fit.item, fit.value, fit.allowed) == ("budget", "weights", total, total - 1)
    assert fit.largest_max_length == 255
    assert "allows" in fit.reason
    assert not plan(asked, 256, ROOMY, budget=100)
    assert plan(asked, 256, ROOMY, budget=100).reason.endswith("; use a smaller model, or one with fewer bits a weight")


def test_smaller_caches_are_a_remedy_where_they_allow_more(asked: Asked, largest_weight: int) -> None:
    fit = plan(asked, 4096, replace(ROOMY, max_binding_size=2000 * CACHE_BYTES))
    longer = replace(fit, by_cache={"int8": 3000, "int4": 4096})
    assert longer.reason.endswith(
        "; use a max_length of at most 2000, or load the model with kv_cache_dtype='int8' (at most 3000) or 'int4' (at "
        "most 4096)"
    )
    least = replace(fit, largest_max_length=0, shortest=fit, by_cache={"int4": 7})
    assert least.reason.endswith("; load the model with kv_cache_dtype='int4' (at most 7) and that max_length")
    heavy = plan(asked, 256, replace(ROOMY, max_binding_size=largest_weight - 16))
    assert replace(heavy, by_cache={"int4": 7}).reason == heavy.reason, "no caches make room for weights"


def test_a_max_length_below_one_is_refused(asked: Asked) -> None:
    with pytest.raises(OptionError, match="max_length is 0; it must be at least 1"):
        plan(asked, 0, ROOMY)


def test_a_weight_that_stays_whole_is_told_with_the_reason(
    described: tuple[GraphDescription, list[WeightEntry]], largest_weight: int
) -> None:
    about, weights = described
    largest = max(weights, key=lambda entry: entry.length)
    why = "node /head (Gemm) reads it whole: only Gather and others can be computed in parts"
    split = (SplitWeight(largest.name, largest.length, 0, why), SplitWeight("another", 1 << 20, 3))

    def asked(max_length: int) -> MemoryRequirements:
        return requirements(about, weights, batch_size=1, max_length=max_length, chunk=64, split=split)

    fit = plan(asked, 1, replace(ROOMY, max_binding_size=largest_weight - 16))
    assert fit.requirements.split == split
    assert fit.reason.endswith(f"; {why}; use a smaller model, or one with fewer bits a weight")


def test_weights_of_the_same_bytes_are_one_buffer(described: tuple[GraphDescription, list[WeightEntry]]) -> None:
    """A table and the product that shares it, whose parts have other dimensions."""
    about, weights = described
    twin = replace(weights[0], name="twin", dims=(weights[0].length,))

    def bytes_of(entries: list[WeightEntry]) -> int:
        return requirements(about, entries, batch_size=1, max_length=8, chunk=64).weights.bytes

    assert bytes_of([*weights, twin]) == bytes_of(weights)
    moved = replace(twin, offset=twin.offset + 4)
    assert bytes_of([*weights, moved]) > bytes_of(weights)


def test_a_small_machine_is_told_although_no_limit_is_broken(asked: Asked) -> None:
    need = asked(256)
    fit = fits(need, ROOMY)
    total = need.total.bytes
    assert (fit.tight, replace(fit, machine=2 * total).tight) == ("", "")
    tight = replace(fit, machine=2 * total - 1)
    assert tight
    assert tight.tight.startswith(
        f"it takes {total} bytes with max_length 256; the browser reports {2 * total - 1} bytes"
    )
    assert tight.tight.endswith(": use a smaller max_length or a smaller model")
    large = replace(need, weights=PoolSize(100 << 30))
    assert replace(fit, requirements=large, machine=(8 << 30) - 1).tight
    assert replace(fit, requirements=large, machine=8 << 30).tight == "", "which larger machines tell, too"
