# /// script
# dependencies = ["capstan-webgpu"]
# ///
"""A language model in a notebook of marimo's, exported for the browser; docs/pyodide.md tells how."""

import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo

    import capstan

    return capstan, mo


@app.cell
def _(mo):
    mo.md("""
    # A language model in a notebook

    The model computes in this page: on the GPU, by WebGPU, where the browser has it. Beside this notebook lies a folder
    `public` with the files of onnxruntime-web and a small model that completes Python.
    """)


@app.cell
async def _(capstan, mo):
    public = f"{mo.notebook_location()}/public"
    capstan.configure(ort_url=f"{public}/ort")
    model = await capstan.Model.load(
        f"{public}/models/bundled/", device="webgpu", progress=capstan.notebook.LoadProgress()
    )
    tokenizer = capstan.Tokenizer(model)
    return model, tokenizer


@app.cell
async def _(capstan, model, tokenizer):
    params = capstan.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=48)
    async with capstan.Generator(model, params) as generator:
        generator.append_tokens(tokenizer.encode("def fibonacci(n):"))
        await capstan.notebook.stream(generator, tokenizer)


if __name__ == "__main__":
    app.run()
