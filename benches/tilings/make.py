"""Write a folder that measures tilings of products on a GPU host: `python3 DIR/measure.py` there.

usage: .venv/bin/python benches/tilings/make.py DIR [SHAPE ...] [--rows M ...]

SHAPE is a model of MODELS; all unless given. Each product of its step is computed by the kernel and tiling that Capstan
chooses ("now"), and by those of TILINGS for matvec_q4.wgsl; with M rows of x, by those of ROWS_TILINGS for
few_rows_q4.wgsl.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "py_src")]

from buildtools.bundles import bundle  # noqa: E402  # behind the path
from capstan.tape.kernel_plan import KernelPlan, MatrixSize, WorkgroupLimits  # noqa: E402
from capstan.tape.ops.few_rows import RowsTuning, tune_rows  # noqa: E402
from capstan.tape.ops.gemv import MatVec, plan_matvec  # noqa: E402
from capstan.tape.ops.gemv_int4 import MatvecTuning, tune_matvec  # noqa: E402

BLOCK = 32
WORDS = 64
"""Words of weights that a thread has under way at most."""
WORKGROUPS = 65535
"""The most of a dispatch."""
SIZES = (MatrixSize(16, 16, 16), MatrixSize(16, 8, 16), MatrixSize(16, 8, 8))
LIMITS = WorkgroupLimits(lanes=32, threads=1024, memory=49152, buffers=10, matrices=SIZES)
"""Those of NVIDIA's GPUs in Chromium."""
MODELS = {
    "smollm2-135m": [(576, 960), (576, 576), (576, 2 * 1536), (1536, 576), (576, 49152)],
    "qwen3-0.6b": [(1024, 4096), (2048, 1024), (1024, 2 * 3072), (3072, 1024), (1024, 151936)],
    "gemma3-1b": [(1152, 1536), (1024, 1152), (1152, 2 * 6912), (6912, 1152), (1152, 262144)],
    "llama-3.2-1b": [(2048, 3072), (2048, 2048), (2048, 2 * 8192), (8192, 2048), (2048, 128256)],
    "qwen3-1.7b": [(2048, 4096), (2048, 2048), (2048, 2 * 6144), (6144, 2048), (2048, 151936)],
    "llama-3.2-3b": [(3072, 5120), (3072, 3072), (3072, 2 * 8192), (8192, 3072), (3072, 128256)],
    "qwen3-4b": [(2560, 6144), (4096, 2560), (2560, 2 * 9728), (9728, 2560), (2560, 151936)],
    "llama-3.1-8b": [(4096, 6144), (4096, 4096), (4096, 2 * 14336), (14336, 4096), (4096, 128256)],
}
"""k and n of the products of a step: q, k and v, output, gate and up, down, last."""
TILINGS = [*product((1, 2, 4), (8, 16, 32, 64), (128, 256, 512, 1024), (None, 132, 264, 528))]
"""rows, span, workgroup and most of MatvecTuning, with x in workgroup memory."""
ROWS_TILINGS = [*product((1, 2, 4, 8), (16, 32, 64, 128), (128, 256))]
"""Rows, span and workgroup of RowsTuning."""
EPSILON = 1e-5
FLAGS = ("ACTIVATED", "GELU", "ERF", "DIVIDED", "CAPPED", "PAIRED", "PREPARED", "WIDE", "BYTES", "SIXTEENS")
EXTENT = {"rounds": 5, "turns": 200, "spread": 200e6}


def fits(tuning: MatvecTuning, half: int = 2) -> bool:
    """Whether the kernel takes a tiling: see its header, and LIMITS."""
    lanes, span, matrices = LIMITS.lanes, tuning.span, 1 + tuning.gated
    teams = tuning.workgroup // span
    if span > tuning.workgroup or span < max(4, tuning.rows) or (span > lanes and span % lanes):
        return False
    staged = 4 * 8 * half * (-(-tuning.steps * span // 8) * 8 + 2)
    sums = 2 * 4 * teams * tuning.rows * matrices * (span // lanes) if tuning.split else 0
    tiles = -(-tuning.n // (teams * tuning.rows))
    idle = tuning.most is not None and tiles <= tuning.most
    words = tuning.rows * matrices * tuning.steps
    return staged + sums <= LIMITS.memory and words <= WORDS and tuning.workgroups <= WORKGROUPS and not idle


def variant(tuning: MatvecTuning, name: str, normed: bool) -> dict[str, Any]:
    constants = {**dict.fromkeys(FLAGS, False), "BLOCK": BLOCK, "FIRST": 0, **tuning.constants()}
    constants |= {"EPSILON": EPSILON} if normed else {}
    return {"name": name, "shader": "matvec_q4", "constants": constants, "workgroups": [tuning.workgroups, 1, 1]}


def named(tuning: MatvecTuning) -> str:
    place = "staged" if tuning.staged else "held"
    return f"rows {tuning.rows} span {tuning.span} threads {tuning.workgroup} {place} most {tuning.most}"


def shape(model: str, place: int, k: int, n: int) -> dict[str, Any]:
    """A product with what surrounds it in a decoder: a norm before it, or a residual behind it."""
    gated, normed = place == 2, place in (0, 2, 4)
    n //= 1 + gated
    now = tune_matvec(k, n, gated, True, 4, LIMITS)
    others = [MatvecTuning(k, n, gated, LIMITS.lanes, *given[:3], True, given[3]) for given in TILINGS]
    variants = [variant(now, f"now: {named(now)}", normed)]
    variants += [variant(other, named(other), normed) for other in others if fits(other) and other != now]
    buffers = {"x": 2 * k, "y": 2 * n, **({"gamma": 2 * k} if normed else {"residual": 2 * n})}
    packed = packed_weights(k, n, gated)
    buffers, size = buffers | packed, sum(packed.values())
    name = f"{model}: {k} -> {'2 x ' * gated}{n}"
    return {"name": name, "buffers": buffers, "bytes": size, "variants": variants}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("shapes", nargs="*", default=[*MODELS])
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    args = parser.parse_args()
    folder = args.folder
    shapes = [
        shape(model, *each) if m == 1 else rows_shape(model, *each, m)
        for model in args.shapes
        for each in numbered(MODELS[model])
        for m in args.rows
    ]
    Path(folder).mkdir(parents=True, exist_ok=True)
    bundle(Path(__file__).with_name("page.ts"), Path(folder, "page.js"))
    shutil.copy(Path(__file__).with_name("measure.py"), folder)
    Path(folder, "jobs.json").write_text(json.dumps({"lanes": LIMITS.lanes, **EXTENT, "shapes": shapes}))
    print(f"{sum(len(each['variants']) for each in shapes)} tilings of {len(shapes)} products")


def packed_weights(k: int, n: int, gated: bool) -> dict[str, int]:
    """The bytes of the weights and scales of a product, by the names of the templates."""
    sizes = {"weights": n * k // 2, "scales": 2 * n * k // BLOCK}
    return {f"{name}{ending}": size for ending in ("", "_up")[: 1 + gated] for name, size in sizes.items()}


def rows_shape(model: str, place: int, k: int, n: int, m: int) -> dict[str, Any]:
    """A product of `m` rows of x, without what surrounds it."""
    gated = place == 2
    n //= 1 + gated
    now = plan_matvec(MatVec(1, 2, n, k, BLOCK, "f16", up=(3, 4) if gated else None, rows=m), LIMITS)
    chosen = tune_rows(k, n, m, gated, True, LIMITS)
    others = [RowsTuning(k, n, m, gated, LIMITS.lanes, chosen.tall, *given) for given in ROWS_TILINGS]
    fit = [each for each in others if each.memory(True) <= LIMITS.memory and each.sums <= 64]
    plans = {f"now: {now.shader}": now}
    for each in fit:
        constants = {**now.constants, **each.constants(BLOCK)}
        plans[f"rows {each.rows} span {each.span} threads {each.workgroup}"] = KernelPlan(
            "few_rows_q4", constants, each.workgroups
        )
    variants = [
        {"name": name, "shader": plan.shader, "constants": plan.constants, "workgroups": plan.counts}
        for name, plan in plans.items()
    ]
    packed = packed_weights(k, n, gated)
    buffers, size = {"x": 2 * k * m, "y": 2 * n * m, **packed}, sum(packed.values())
    name = f"{model}, {m} rows: {k} -> {'2 x ' * gated}{n}"
    return {"name": name, "buffers": buffers, "bytes": size, "variants": variants}


def numbered(products: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return [(place, k, n) for place, (k, n) in enumerate(products)]


if __name__ == "__main__":
    main()
