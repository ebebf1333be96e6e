"""Correctness cases that go with the bench to a GPU host: replies are compared with what CPython's oracle gave here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capstan_host.testing.harness import generate_request
from tests import oracle

ROOT = Path(__file__).parents[1]

__all__ = ["FIXTURES", "cases"]

FIXTURES = ("nano-llama", "nano-qwen2", "nano-granite")
PROMPT = "def fibonacci(n):"
TOKENS = 200
DEVICE_OPERATIONS = """
import json
import capstan

device = await capstan.open_device("webgpu")
print(json.dumps({
    "capabilities": await capabilities(device),
    "infos": await infos(device),
    "differing copies": await copies(device, rounds=200),
    "masks": await masks(device),
    "conversions": await conversions(device),
    "readbacks": await readbacks(device),
    "ledger": str(capstan.memory.ledger()),
}))
"""
"""Runs after tests/browser/scripts/device_operations.py, with its functions."""


def cases(models: dict[str, Path]) -> list[dict[str, Any]]:
    """Operations on device memory (with the bundled model); for each model greedy ids in every capture, with those that
    onnxruntime-genai picks, and a seeded sampled run for each run-ahead."""
    operations = (ROOT / "tests/browser/scripts/device_operations.py").read_text() + DEVICE_OPERATIONS
    request = {
        "kind": "exec",
        "source": operations,
        "filename": "device.py",
        "argv": ["device.py"],
        "models": {},
        "files": {},
    }
    found = [case("bundled", "device operations", request)]
    for name, folder in models.items():
        prompt = oracle.encode(folder, PROMPT)
        expected = oracle.greedy(folder, prompt, TOKENS)
        for capture in ("tape", "ort", "off"):
            request = generate_request(name, prompt_ids=prompt, capture=capture, max_new_tokens=TOKENS)
            found.append({**case(name, f"{capture} greedy", request), "expected": expected})
        for ahead in (1, 8, None):
            search = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "random_seed": 7}
            request = generate_request(name, prompt_ids=prompt, run_ahead=ahead, search=search, max_new_tokens=TOKENS)
            found.append(case(name, f"tape sampled, run-ahead {ahead}", request))
    return found


def case(model: str, title: str, request: dict[str, Any]) -> dict[str, Any]:
    return {"action": "request", "for": model, "row": title, "contender": "capstan", "request": request}
