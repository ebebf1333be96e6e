"""The npm package's module of agents, for pages of the site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from buildtools.bundles import ENTRIES, MCP, bundle, bundle_small
from capstan_host.site_server import SiteServer
from tests.plain_server import serving_plainly

__all__ = ["agent_module"]


@contextmanager
def agent_module(folder: Path, site: SiteServer) -> Iterator[str]:
    """Its address on another server; it imports the site's client."""
    client = f"{site.url}capstan/capstan.js"
    outside = ["--external:./mcp.js", f"--alias:capstan-webgpu={client}", f"--external:{client}"]
    bundle(ENTRIES["agent"], folder / "agent.js", outside)
    bundle_small(MCP, folder / "mcp.js")
    with serving_plainly(folder, any_origin=True) as url:
        yield f"{url}agent.js"
