"""MkDocs' hook: adds the pages that are not in docs/, and gives every page the links of the site.

MkDocs loads this file by its path, and calls these functions by their names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from buildtools import ROOT
from buildtools.bundles import ENTRIES
from buildtools.documentation.links import INCLUDED, site_links
from buildtools.documentation.reference import TYPESCRIPT
from buildtools.environment import distribution, site_packages

__all__ = ["on_files", "on_page_markdown", "on_post_build"]

HOME = "index.md"
SOUGHT = {
    "agents.md": ("agent", "mcp", "model context protocol", "webmcp"),
    "browsers.md": ("safari", "iphone", "ipad", "android", "phone", "mobile", "firefox", "chrome", "edge", "webkit"),
    "chat.md": ("system prompt", "conversation", "chat template", "multi-turn"),
    "command_line.md": ("terminal", "cli", "command line"),
    "convert.md": ("convert", "conversion", "export", "quantize", "builder", "fine-tuned"),
    "costs.md": ("download size", "bytes", "bandwidth", "cost", "storage"),
    "embeddings.md": ("embeddings", "rag", "vector", "semantic search", "bert"),
    "errors.md": ("error", "exception"),
    "evaluation.md": ("lm-eval", "evaluation", "perplexity"),
    "five_minutes_web.md": ("install", "npm", "getting started", "quick start"),
    "fleet.md": ("kubernetes", "dask", "ssh"),
    "five_minutes_fleet.md": ("fleet", "batch"),
    "guidance.md": ("json", "json schema", "grammar", "regex", "structured output"),
    "hear.md": ("speech recognition", "transcription", "whisper", "transcribe", "microphone", "captions", "audio"),
    "lora.md": ("lora", "adapter"),
    "memory.md": ("memory", "buffers"),
    "models.md": ("gguf", "model families", "llama", "qwen", "gemma"),
    "offline.md": ("offline", "service worker", "privacy"),
    "porting_transformers_js.md": ("transformers.js",),
    "porting_webllm.md": ("webllm", "mlc"),
    "porting_wllama.md": ("wllama", "llama.cpp"),
    "prompt_api.md": ("prompt api", "languagemodel", "window.ai", "gemini nano", "polyfill"),
    "pyodide.md": ("notebook", "jupyterlite", "marimo", "pyscript", "micropip"),
    "questions.md": ("faq", "cors", "licence"),
    "rerankers.md": ("reranker", "rerank", "cross-encoder"),
    "saved_conversations.md": ("save a conversation", "restore", "reload"),
    "see.md": ("image", "picture", "vision", "photo"),
    "speak.md": ("text to speech", "voice", "kokoro", "tts"),
    "speed.md": ("benchmark", "tokens per second"),
    "speed_here.md": ("slow", "performance"),
    "tools.md": ("function calling", "tools"),
    "web_bundlers.md": ("react", "vite", "webpack", "next.js", "vue", "svelte", "angular", "bundler"),
    "web_element.md": ("web component", "custom element", "chat ui"),
    "web_models.md": ("cache", "delete a model", "session", "tabs"),
    "web_openai.md": ("openai", "ai sdk", "vercel", "streaming"),
    "web_tokens.md": ("tokenizer", "logprobs", "count tokens"),
}
"""Words that people search, by the page that the search shows first."""
DEMO = """<p><a class="md-button md-button--primary" href="../index.html">Open the demo</a></p>
<details class="demo"><summary>Try it here</summary>
<iframe src="../index.html" loading="lazy" title="The demo"></iframe></details>
"""
"""On the home page if CAPSTAN_DEMO is set: the site is then in the folder docs/ of one that has the demo. The frame
loads when it is opened."""
LICENCES = """This site is made by Material for MkDocs, whose licence follows, and has icons of Material Design Icons.
Its scripts contain clipboard.js (MIT), escape-html (MIT), focus-visible (W3C-20150513), lunr (MIT), RxJS (Apache-2.0)
and tslib (0BSD); the source maps beside them hold their sources with their notices.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the included and the generated pages."""
    for page, source in INCLUDED.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for entry in ENTRIES:
        files.append(File.generated(config, f"typescript/{entry}.md", abs_src_path=str(TYPESCRIPT / f"{entry}.md")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page's text with links of the site, and the names that importers of TypeScript know."""
    name = page.file.src_uri
    if name.startswith("typescript/"):
        entry = Path(name).stem
        return markdown.replace(f"# {entry}\n", f"# capstan-webgpu{'' if entry == 'capstan' else '/' + entry}\n", 1)
    if name == HOME:
        page.meta["hide"] = ["navigation", "toc"]
        markdown = markdown.replace("<!-- demo -->", DEMO if os.environ.get("CAPSTAN_DEMO") else "")
    if name in SOUGHT:
        page.meta["tags"] = list(SOUGHT[name])  # the search weighs tags above titles
    return site_links(markdown, name)


def on_post_build(config: MkDocsConfig) -> None:
    """Add the licences of the site's own parts."""
    texts = [
        distribution("mkdocs_material") / "licenses/LICENSE",
        site_packages() / "material/templates/.icons/material/LICENSE",
    ]
    whole = "\n\n".join([LICENCES, *(path.read_text(encoding="utf-8") for path in texts)])
    Path(config.site_dir, "licences.txt").write_text(whole, encoding="utf-8")
