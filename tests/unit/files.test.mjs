// The small files of models over a server that sends other bytes than it lists, or too many, or too slowly.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before, beforeEach, test } from "node:test";
import { gzipSync } from "node:zlib";
import { EngineError } from "../../web/src/wire/errors.ts";
import { fetchBytes, fetchOptional } from "../../web/src/worker/storage/files.ts";
import { openRepository } from "../../web/src/worker/storage/hub.ts";
import { entry, keep, kept, takeDamaged } from "../../web/src/worker/storage/kept_files.ts";
import { prefetch } from "../../web/src/worker/storage/prefetch.ts";
import { openSource } from "../../web/src/worker/storage/source.ts";
import { setStallTimeout } from "../../web/src/worker/storage/whole.ts";

const COMMIT = "0123456789abcdef0123456789abcdef01234567";
const GOOD = Buffer.from('{"model": {}}');
const MOST = 1 << 20;

/** How each file is sent, by its name: `(response) => ...`. */
let sent;
/** The files as the hub lists them. */
let siblings;
/** The bytes that were written of endless bodies. */
let written;
let server;
let base;

before(async () => {
  server = createServer((request, response) => {
    if (request.url.startsWith("/api/models/")) return response.end(JSON.stringify({ sha: COMMIT, siblings }));
    const send = sent[request.url.slice(request.url.lastIndexOf("/") + 1)];
    if (send) return send(response);
    response.writeHead(404).end();
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  base = `http://127.0.0.1:${server.address().port}`;
  globalThis.location = { href: `${base}/page.html`, origin: base, protocol: "http:" };
});
after(() => {
  server.closeAllConnections();
  server.close();
});
beforeEach(() => {
  sent = {};
  siblings = [];
  written = 0;
  setStallTimeout(30);
});

const plain = (bytes) => (response) => response.end(bytes);
const packed = (bytes) => (response) => response.writeHead(200, { "Content-Encoding": "gzip" }).end(bytes);
/** Chunks until the connection is closed, with a pause after each. */
const endless = (chunk, pause) => async (response) => {
  response.setMaxListeners(0).write("{");
  for (; !response.closed && written < 1 << 28; written += chunk.length) {
    if (!response.write(chunk)) await Promise.race([once(response, "drain"), once(response, "close")]);
    if (pause) await new Promise((resolve) => setTimeout(resolve, pause));
  }
};
const ZEROS = Buffer.alloc(1 << 16);
/** The most bytes of a body that buffers take after its reader has stopped. */
const ENOUGH = 1 << 26;
const BOMB = gzipSync(Buffer.alloc(200 * MOST, " "));

const read = (url) => fetchBytes(url, MOST, null, assert.fail);
const refused = (promise, said, code = "ModelFileError") =>
  assert.rejects(promise, (error) => {
    assert.equal(error.code, code, error.message);
    assert.match(error.message, said);
    return true;
  });
/** The folder of a repository in which `name` is listed so. */
const listing = async (name, listed) => {
  siblings = [{ rfilename: name, ...listed }];
  return openRepository(`nano/${name}${JSON.stringify(listed).replace(/\W/g, "")}`, base, "main", true);
};
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");

test("a file that unpacks to more than is read is refused before all of it is unpacked", async () => {
  sent["tokenizer.json"] = packed(BOMB);
  for (const read of [fetchOptional, (url, most) => fetchBytes(url, most, null, assert.fail)])
    await refused(
      read(`${base}/m/tokenizer.json`, MOST, assert.fail),
      /tokenizer\.json: more than 1048576 bytes, and at most/,
    );
});

test("a body without an end is given up at the first byte too many", async () => {
  sent["genai_config.json"] = endless(ZEROS);
  await refused(read(`${base}/m/genai_config.json`), /genai_config\.json: more than 1048576 bytes/);
  assert.ok(written < ENOUGH, `${written} bytes were sent`);
});

test("a file that announces more than is read is refused before its first byte", async () => {
  sent["config.json"] = (response) => response.writeHead(200, { "Content-Length": 2 * MOST }).write(" ");
  await refused(read(`${base}/m/config.json`), /config\.json: 2097152 bytes, and at most 1048576/);
});

test("a file of the limit's size is read", async () => {
  sent["config.json"] = packed(gzipSync(Buffer.alloc(MOST, " ")));
  assert.equal((await read(`${base}/m/config.json`)).length, MOST);
});

test("a listed file ends at its size, and none that is shorter is taken", async () => {
  const folder = await listing("config.json", { size: 17842 });
  sent["config.json"] = endless(ZEROS);
  await refused(read(`${folder}config.json`), /config\.json: more than the 17842 bytes came that are listed; nothing/);
  assert.ok(written < ENOUGH, `${written} bytes were sent`);
  sent["config.json"] = plain(Buffer.alloc(17841));
  await refused(read(`${folder}config.json`), /config\.json: 17841 bytes came, but 17842 are listed/);
  sent["config.json"] = plain(Buffer.alloc(17842));
  assert.equal((await read(`${folder}config.json`)).length, 17842);
});

test("a file that is listed with more than is read is not read", async () => {
  const folder = await listing("tokenizer.json", { size: 1e12 });
  sent["tokenizer.json"] = plain(GOOD);
  await refused(read(`${folder}tokenizer.json`), /tokenizer\.json: 1000000000000 bytes, and at most 1048576/);
});

test("a file has the SHA-256 that is listed", async () => {
  const folder = await listing("tokenizer.json", { size: GOOD.length, lfs: { sha256: sha256(GOOD) } });
  const other = Buffer.from(GOOD.toString().replace("model", "medel"));
  sent["tokenizer.json"] = plain(other);
  const said = new RegExp(`SHA-256 ${sha256(other)}, but ${sha256(GOOD)} is listed; nothing of it is kept`);
  await refused(fetchOptional(`${folder}tokenizer.json`, MOST, assert.fail), said);
  sent["tokenizer.json"] = plain(GOOD);
  assert.deepEqual(Buffer.from(await fetchOptional(`${folder}tokenizer.json`, MOST, assert.fail)), GOOD);
});

test("an answer of a hub without an end is given up", async () => {
  const hub = createServer((request, response) => void endless(ZEROS)(response));
  await once(hub.listen(0, "127.0.0.1"), "listening");
  try {
    const asked = openRepository("nano/endless", `http://127.0.0.1:${hub.address().port}`, "main", true);
    await refused(asked, /the answer of the hub .* for nano\/endless at main: more than 67108864 bytes/);
  } finally {
    hub.closeAllConnections();
    hub.close();
  }
});

test("a small file has a deadline, however steadily its bytes come", async () => {
  setStallTimeout(0.25);
  sent["tokenizer.json"] = endless(Buffer.from(" "), 10);
  const said = /tokenizer\.json: \d+ bytes came in \d\.\d s, and after 10 times stall_timeout 10000 bytes a second/;
  await refused(read(`${base}/m/tokenizer.json`), said);
});

test("a large small file takes its time over a slow link", async () => {
  setStallTimeout(0.1);
  const part = Buffer.alloc(1000, " ");
  sent["tokenizer.json"] = async (response) => {
    for (let i = 0; i < 40; i++) {
      response.write(part);
      await new Promise((resolve) => setTimeout(resolve, 40));
    }
    response.end();
  };
  assert.equal((await read(`${base}/m/tokenizer.json`)).length, 40 * part.length);
});

test("a kept file whose bytes changed is dropped, so that the next visit asks its server", async () => {
  const entries = new Map();
  const cache = {
    put: async (address, response) => void entries.set(address, response),
    match: async (address) => entries.get(address),
    delete: async (address) => entries.delete(address),
  };
  globalThis.caches = { open: async () => cache };
  try {
    await keep("files", "good", GOOD);
    assert.deepEqual(Buffer.from(await (await kept("files", "good")).arrayBuffer()), GOOD);
    await keep("files", "changed", GOOD);
    const { headers } = await entry("files", "changed");
    entries.set("changed", new Response("other", { headers }));
    assert.deepEqual(JSON.parse(takeDamaged()), []);
    assert.equal(await kept("files", "changed"), null);
    assert.deepEqual([takeDamaged(), takeDamaged()], ['["changed"]', "[]"], "it is told once");
    assert.equal(await entry("files", "changed"), null);
  } finally {
    delete globalThis.caches;
  }
});

test("what is fetched ahead is not swallowed either", async () => {
  sent["genai_config.json"] = endless(ZEROS);
  assert.deepEqual(await prefetch(`${base}/m/`, null), []);
  assert.ok(written < ENOUGH, `${written} bytes were sent`);
  await refused(read(`${base}/m/genai_config.json`), /genai_config\.json: more than 1048576 bytes/);
});

test("an error that quotes several lines of another engine is one line", () => {
  const quoted = new EngineError("UnsupportedModelError", "no session: graph.cc:1\n  bad node\r\nend");
  assert.equal(quoted.message, "no session: graph.cc:1 bad node end");
});

test("errors show addresses without query and credentials", async () => {
  const query = "?key=SECRET";
  sent[`large.json${query}`] = plain(Buffer.alloc(MOST + 1));
  sent[`page.json${query}`] = (response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<html>");
  sent[`cut.json${query}`] = (response) => {
    response.writeHead(200, { "Content-Length": 100 }).write("{", () => response.destroy());
  };
  const told = {
    "large.json": /large\.json: 1048577 bytes/,
    "page.json": /page\.json: the server answers with an HTML page/,
    "cut.json": /cut\.json/,
    "missing.json": /missing\.json.* 404/,
  };
  const shows = (said) => (error) => {
    assert.match(error.message, said);
    assert.doesNotMatch(error.message, /SECRET/);
    return true;
  };
  for (const [name, said] of Object.entries(told))
    await assert.rejects(read(`${base}/m/${name}${query}#SECRET`), shows(said));
  await assert.rejects(read(`${base.replace("//", "//me:SECRET@")}/m/a.json`), shows(/a\.json/));
});

test("a file outside of a model's folder has the remedy of its caller", async () => {
  sent["brief.state"] = (response) => response.writeHead(200, { "Content-Type": "text/html" }).end("<html>");
  const remedy = "check the state's address";
  for (const name of ["brief.state", "missing.state"]) {
    const [ours, folders] = [remedy, null].map((each) =>
      fetchBytes(`${base}/m/${name}`, MOST, null, assert.fail, each),
    );
    await refused(ours, /; check the state's address$/);
    await refused(folders, /; check that the whole model folder is there$/);
  }
});

for (const size of [2 ** 53, 2 ** 40 + 1, 1e30, -1, 1.5, "5", {}]) {
  test(`a hub that lists a size of ${JSON.stringify(size)} is refused`, async () => {
    siblings = [{ rfilename: "config.json", size }];
    await refused(
      openRepository("a/b", base, "main", false),
      /a\/b at main, config.json: its server reports a size of /,
    );
  });
}

test("a server that tells an impossible size of a data file is refused", async () => {
  for (const size of ["9007199254740992", "99999999999999999999"]) {
    sent["huge.data"] = (response) =>
      response.req.method === "HEAD"
        ? response.writeHead(405).end()
        : response.writeHead(206, { "Content-Range": `bytes 0-0/${size}` }).end("a");
    await refused(openSource(`${base}/huge.data`, false), /huge.data: its server reports a size of /);
  }
});
