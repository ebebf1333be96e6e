"""web/src/worker/gpu/wgsl.ts declares the bindings that an operation names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.shader_declarations import answered

CONSTANTS = {"WIDE": False, "EPSILON": 0.5, "K": 64, "WORKGROUP": 64, "ITEMS": 1}


def made(*bindings: str, **others: Any) -> dict[str, Any]:
    text = {"shader": "norm_rows", "constants": CONSTANTS, "floats": ["EPSILON"], "half": False, "lanes": 0}
    return answered({**text, "bindings": dict.fromkeys(bindings), **others})


def test_bindings_that_an_operation_lacks_are_left_out_with_what_is_for_them() -> None:
    plain, centered = made("x", "gamma", "normed"), made("normed", "beta", "gamma", "x")
    assert [(each["name"], each["binding"], each["access"]) for each in centered["bindings"]] == [
        *(("x", 0, "read"), ("gamma", 1, "read"), ("beta", 2, "read"), ("normed", 3, "read_write")),
    ]
    assert [each["name"] for each in plain["bindings"]] == ["x", "gamma", "normed"]
    assert ("let mean" in plain["code"], "let mean" in centered["code"]) == (False, True)


@pytest.mark.parametrize(
    ("bindings", "missing", "unknown"),
    [(("x", "normed"), "gamma", "none"), (("x", "gamma", "normed", "bias"), "none", "bias")],
    ids=["one that it must have", "one that it does not know"],
)
def test_bindings_that_do_not_fit_are_refused_with_their_names(
    bindings: Sequence[str], missing: str, unknown: str
) -> None:
    said = f"kernel norm_rows declares .*; not given: {missing}; given and not declared: {unknown}"
    with pytest.raises(ValueError, match=said):
        made(*bindings)


def test_a_kernel_that_no_room_has_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no kernel 'softmax_rows'"):
        made(shader="softmax_rows")


NESTED = """#if OUTER
#if INNER
both
#else
outer alone
#endif
#else
#if !INNER
neither
#endif
#endif
always"""


@pytest.mark.parametrize(
    ("outer", "inner", "lines"),
    [
        (True, True, ["both", "always"]),
        (True, False, ["outer alone", "always"]),
        (False, True, ["always"]),
        (False, False, ["neither", "always"]),
    ],
)
def test_lines_inside_conditions_count_where_all_of_them_do(outer: bool, inner: bool, lines: list[str]) -> None:
    code = made(written=NESTED, constants={"OUTER": outer, "INNER": inner})["code"]
    assert [line for line in code.splitlines() if line in ("both", "outer alone", "neither", "always")] == lines
