"""Runs in a Pyodide that Capstan did not start: installs the wheel, and takes tokens by every API."""

from __future__ import annotations

import warnings
from typing import Any

PROMPT = [5, 6, 7, 8, 9]
WAYS = (("wasm", "off"), ("webgpu", "tape"))


async def install(base: str) -> dict[str, str]:
    """As anybody would, but from this page's index."""
    import micropip

    await micropip.install("capstan-webgpu", index_urls=[f"{base}simple"])
    return {}


async def refusals(base: str) -> dict[str, str]:
    """The errors for missing prerequisites, before anything is configured."""
    import pyodide

    told = await install(base)
    version, pyodide.__version__ = pyodide.__version__, "0.25.1"
    try:
        import capstan
    except ImportError as error:
        told["pyodide"] = f"{type(error).__name__}: {error}"
    pyodide.__version__ = version
    import capstan

    for what, ort_url in (("nowhere", None), ("absent", f"{base}absent"), ("older", f"{base}older-ort")):
        capstan.configure(ort_url=ort_url)
        try:
            await capstan.Model.load(f"{base}models/nano-llama/", device="wasm")
        except capstan.CapstanError as error:
            told[what] = f"{type(error).__name__}: {error}"
    return told


async def least(base: str) -> dict[str, str]:
    """The errors in a page with neither WebGPU nor a way to wait, and the results of calls that work there."""
    import capstan

    folder, told = f"{base}models/nano-llama/", {}
    capstan.configure(ort_url=f"{base}ort")
    try:
        await capstan.Model.load(folder, device="webgpu")
    except capstan.CapstanError as error:
        told["webgpu"] = f"{type(error).__name__}: {error}"
    try:
        capstan.Model(folder, device="wasm")
    except capstan.CapstanError as error:
        told["Model"] = f"{type(error).__name__}: {error}"
    model = await capstan.Model.load(folder)
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=8)
    generator = capstan.Generator(model, params)
    try:
        generator.append_tokens(PROMPT)
        generator.generate_next_token()
    except capstan.CapstanError as error:
        told["generate"] = f"{type(error).__name__}: {error}"
    await generator.aclose()
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens(PROMPT)
        told["auto"] = f"{model.device_type} {[token async for token in generator]}"
    params.set_guidance("regex", "[a-z]+")
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens(PROMPT)
        told["guided"] = str([token async for token in generator])
    await model.aclose()
    return told


async def strict(base: str) -> dict[str, str]:
    """The error under a Content-Security-Policy that forbids making scripts from text."""
    try:
        import capstan  # noqa: F401
    except Exception as error:
        return {"import": f"{type(error).__name__}: {error}"}
    return {}


async def tokens(base: str, ort_url: str | None) -> dict[str, Any]:
    """The first tokens by each device and loop."""
    import capstan

    capstan.configure(ort_url=ort_url)
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for device, capture in WAYS:
            model = await capstan.Model.load(f"{base}models/nano-llama/", device=device, capture=capture)
            params = capstan.GeneratorParams(model)
            params.set_search_options(do_sample=False, max_length=24)
            async with capstan.Generator(model, params) as generator:
                generator.append_tokens(PROMPT)
                found[f"{device}, awaited"] = [token async for token in generator]
            with capstan.Generator(model, params) as generator:
                generator.append_tokens(PROMPT)
                taken = []
                while not generator.is_done():
                    generator.generate_next_token()
                    taken.append(int(generator.get_next_tokens()[0]))
                found[f"{device}, blocking"] = taken
                found[f"{device}, capture"] = generator.capture
            tokenizer = capstan.Tokenizer(model)
            found[f"{device}, text"] = tokenizer.decode(taken)
            found["chat"] = tokenizer.apply_chat_template(
                [{"role": "user", "content": "hi"}], template_str="{{ messages }}"
            )
            await model.aclose()
    return found
