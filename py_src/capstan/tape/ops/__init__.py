"""Holds one module for each of Capstan's operations: its definition, recognition, kernels and bindings.

    elementwise.py, norm.py  define operations that matrix products join
    packed.py                lists the buffers of a product's weights
    gemv.py                  defines products of one row or a few rows. gemv_int4.py, gemv_dense.py and few_rows.py
                             choose their tiling, gemv_recorded.py recognises them, gemv_joins.py joins their neighbours
    attention.py             defines attention of one token. attention_plan.py chooses its tiling, attention_recorded.py
                             recognises it by attention_signatures.py and attention_finder.py
    head_gate.py             defines the gate of an attention's result
    convolution.py, delta_rule.py  define what has a state: causal convolutions, linear attention. traced.py follows
                             their kernels, which state_signatures.py lists
    encoder_attention.py     recognises attention over an encoder's outputs
    normed_rows.py           computes norms apart from products
    lookup.py                looks up rows of tables by ids, position_row.py by positions
    beside.py                defines products of one row whose results are one vector
    matmul.py                defines products of many rows. matmul_matrices.py computes them with subgroup matrices,
                             gated_products.py joins them
    minima.py                lets products by weights with minima add these minima
    prefill_attention.py     computes attention of many tokens with subgroup matrices

A new operation needs its own module, and a line in RULES (for decode steps) or READERS (for prefill runs).
"""

from __future__ import annotations

from . import (
    attention_recorded,
    beside,
    convolution,
    delta_rule,
    elementwise,
    encoder_attention,
    gemv_recorded,
    norm,
    normed_rows,
)
from .gated_products import GatedProducts
from .matmul import Products
from .matmul_matrices import DenseProducts
from .minima import MinimaSums
from .prefill_attention import PrefillAttentions

__all__ = ["READERS", "RULES"]

RULES = (
    attention_recorded.RULES,
    encoder_attention.RULES,
    convolution.RULES,
    delta_rule.RULES,
    elementwise.RULES,
    norm.RULES,
    gemv_recorded.RULES,
    beside.RULES,
    normed_rows.RULES,
)
"""The rules for operations of decode steps, in the order in which their folds run."""

READERS = (MinimaSums, Products, DenseProducts, GatedProducts, PrefillAttentions)
"""The readers for operations of prefill runs; the first that recognises an operation reads it, and they join in this
order."""
