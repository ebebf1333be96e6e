"""One module for each of our operations: its definition, recognition, kernels and bindings.

elementwise.py, norm.py operations that join products packed.py the buffers of a product's weights gemv.py products of
one row or a few; gemv_int4.py, gemv_dense.py, few_rows.py choose their tiling, gemv_recorded.py recognises them,
gemv_joins.py joins their neighbours to them attention.py attention of one token; attention_plan.py chooses its
tiling, attention_recorded.py recognises it, by attention_signatures.py, and encoder_attention.py that over an encoder's
outputs lookup.py rows of tables by ids, position_row.py by positions beside.py products of one row whose results are
one vector matmul.py products of many rows; matmul_matrices.py makes them by subgroup matrices, gated_products.py joins
them minima.py lets products by affine weights add their minima prefill_attention.py attention of many tokens,
by subgroup matrices

A further operation is a module of its own and a line in RULES (of decode steps) or READERS (of prefill runs).
"""

from __future__ import annotations

from . import attention_recorded, beside, elementwise, encoder_attention, gemv_recorded, norm
from .gated_products import GatedProducts
from .matmul import Products
from .matmul_matrices import DenseProducts
from .minima import MinimaSums
from .prefill_attention import PrefillAttentions

__all__ = ["READERS", "RULES"]

RULES = (
    attention_recorded.RULES,
    encoder_attention.RULES,
    elementwise.RULES,
    norm.RULES,
    gemv_recorded.RULES,
    beside.RULES,
)
"""The rules for operations of decode steps, in the order in which their folds run."""

READERS = (MinimaSums, Products, DenseProducts, GatedProducts, PrefillAttentions)
"""The readers for operations of prefill runs; the first that recognises an operation reads it, and they join in this
order."""
