"""Ranks documents by how well they answer a query, with cross-encoders and Qwen3-Reranker as ONNX."""

from __future__ import annotations

import sys

from ..signatures import check_arguments
from .reranker import Reranker, RerankResult

__all__ = ["RerankResult", "Reranker"]

check_arguments(sys.modules[__name__])
