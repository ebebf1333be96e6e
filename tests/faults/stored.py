"""Attacks on the files and entries that a page stored: they change between two visits. The next visit gives the right
ids, or reports damage and then gives them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from playwright.sync_api import Browser, Page

from capstan_host.headless.static_server import running

from .deadline import PAGE_SECONDS, kept_until_end
from .report import Outcome
from .share import Share
from .visits import LIMIT_SECONDS, PROMPT, TOKENS, FaultyServer, opened, wanted

__all__ = ["attack_stored"]

CHANGES = ("flip", "cut", "longer", "empty", "text", "gone")
CHANGE = """async (changes) => {
  const places = [];
  const walk = async (folder, path) => {
    for await (const [name, entry] of folder)
      if (entry.kind === "directory") await walk(entry, `${path}${name}/`);
      else places.push({ name: path + name, folder, file: name });
  };
  await walk(await navigator.storage.getDirectory(), "");
  for (const name of await caches.keys()) {
    const cache = await caches.open(name);
    for (const request of await cache.keys()) places.push({ name: `${name} ${request.url}`, cache, request });
  }
  places.sort((one, other) => (one.name < other.name ? -1 : 1));
  const changed = (bytes, how, at) => {
    const copy = new Uint8Array(bytes);
    const from = at % (copy.length + 1);
    if (how === "flip") return copy.map((byte, i) => (i >= from && i < from + 65536 ? byte ^ 0xff : byte));
    if (how === "cut") return copy.slice(0, from);
    if (how === "longer") return new Uint8Array([...copy.subarray(0, 1e5), ...copy]);
    if (how === "empty") return new Uint8Array();
    return how === "text" ? new TextEncoder().encode("[".repeat(20000)) : copy;
  };
  const told = [];
  for (const { pick, how, at } of changes) {
    const place = places[pick % places.length];
    told.push(`${how} ${place.name}`);
    if (place.cache) {
      const found = await place.cache.match(place.request, { ignoreVary: true });
      if (how === "gone" || !found) await place.cache.delete(place.request);
      else {
        const { status, headers } = found;
        const body = changed(await found.arrayBuffer(), how, at);
        await place.cache.put(place.request, new Response(body, { status, headers }));
      }
    } else if (how === "gone") await place.folder.removeEntry(place.file).catch(() => undefined);
    else {
      const handle = await place.folder.getFileHandle(place.file, { create: true });
      const body = changed(await (await handle.getFile()).arrayBuffer(), how, at);
      const writer = await handle.createWritable();
      await writer.write(body);
      await writer.close();
    }
  }
  return told;
}"""
VISIT = """async ({ device, limit, ids, prompt, maxTokens }) => {
  const { Capstan } = await import("/capstan/capstan.js");
  const deadline = performance.now() + limit;
  const late = new Promise((resolve) => setTimeout(resolve, limit, { name: "late", message: "no answer" }));
  let damaged = 0;
  const onEvent = ({ kind }) => (damaged += kind === "damaged");
  let llm = null;
  const visit = async () => {
    llm = await Capstan.load("/models/nano-llama/", { device, verifyAfter: 0, onEvent });
    for (;;) {
      const before = damaged;
      const { tokenIds } = await llm.complete(prompt, { maxTokens, temperature: 0 }).result.catch((error) => {
        if (error.code === "LogitsError") return { tokenIds: error.code };
        throw error;
      });
      if (String(tokenIds) === String(ids)) return { damaged };
      // Damage is told while nothing runs, and what is asked after that is right.
      if (before) return { name: "wrong", message: `${tokenIds} after damage was told` };
      while (!damaged && performance.now() < deadline) await new Promise((resolve) => setTimeout(resolve, 50));
      if (!damaged) return { name: "wrong", message: `${tokenIds}, and no damage is told` };
    }
  };
  try {
    return await Promise.race([visit(), late]);
  } catch (error) {
    return { name: error.name, message: `${error.code} ${error.message}` };
  } finally {
    llm?.close();
  }
}"""
"""Damage found while a run is under way is told behind it, so that a wrong answer, or logits that are NaN, may have
come before."""


def attack_stored(browser: Browser, root: Path, share: Share) -> Outcome:
    """Visits of one origin, each after one or two changes of what the visit before it left."""
    outcome = Outcome("stored")
    with running(FaultyServer(root)) as server, opened(browser, server) as page:
        first = visit(page, "wasm")
        if "name" in first:
            outcome.fail(b"", f"the first visit: {first}")
        for device, changes in share.cases(outcome.kind, made):
            with kept_until_end(json.dumps(changes).encode(), PAGE_SECONDS):
                told = page.evaluate(CHANGE, changes)
                found = visit(page, device)
            if "name" in found:
                outcome.fail(json.dumps(changes).encode(), f"{told} on {device}: {found}")
            else:
                outcome.taken += 1
    return outcome


def made(random: Random) -> tuple[str, list[dict[str, Any]]]:
    """A visit's device, and the changes before it."""
    device = "webgpu" if random.random() < 0.1 else "wasm"
    return device, [
        {"pick": random.randrange(10**6), "how": random.choice(CHANGES), "at": random.randrange(10**6)}
        for _ in range(random.choice((1, 1, 2)))
    ]


def visit(page: Page, device: str) -> dict[str, Any]:
    asked = {"device": device, "limit": 1000 * LIMIT_SECONDS, "ids": wanted(), "prompt": PROMPT, "maxTokens": TOKENS}
    found: dict[str, Any] = page.evaluate(VISIT, asked)
    return found
