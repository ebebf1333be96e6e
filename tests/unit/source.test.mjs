// Weights that come before anybody asks for them.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before, beforeEach, test } from "node:test";
import { ByteReader, Chunk } from "../../web/src/worker/storage/chunk.ts";
import { dropExpected, expectSource, HttpSource, openSource } from "../../web/src/worker/storage/source.ts";

const MIB = 1 << 20;
/** More than the buffers between a server and a page take. */
const SIZE = 48 * MIB;
const DATA = new Uint8Array(SIZE).map((_, at) => (at * 31) >> 8);

/** The ranges asked for, and the bytes sent in answer. */
let asked;
let written;
/** Called before each piece that is sent. */
let pause;
let server;
let url;

before(async () => {
  server = createServer(async (request, response) => {
    asked.push(request.headers.range ?? null);
    const [, start, last] = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "bytes=0-");
    const end = last ? Number(last) + 1 : SIZE;
    const told = { "Content-Range": `bytes ${start}-${end - 1}/${SIZE}`, "Content-Length": end - start };
    response.writeHead(request.headers.range ? 206 : 200, told);
    for (let at = Number(start); at < end && !response.closed; at += MIB) {
      await pause?.(at);
      if (!response.write(DATA.subarray(at, Math.min(end, at + MIB))))
        await Promise.race([once(response, "drain"), once(response, "close")]);
      written = Math.max(written, at + MIB);
    }
    response.end();
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const origin = `http://127.0.0.1:${server.address().port}`;
  globalThis.location = { href: `${origin}/page.html`, origin, protocol: "http:" };
  url = `${origin}/model.onnx.data`;
});
after(() => {
  server.closeAllConnections();
  server.close();
});
beforeEach(() => {
  asked = [];
  written = 0;
  pause = null;
});

/** Whether a condition holds within so many seconds. */
async function soon(condition, seconds = 5) {
  for (let tries = 0; tries < 20 * seconds && !condition(); tries++) await new Promise((done) => setTimeout(done, 50));
  return condition();
}

const opened = () => new HttpSource({ name: url, size: SIZE, validator: null }, true);

/** Read pieces of these lengths, and compare them with the file from `start` on. */
async function reads(source, start, lengths) {
  for (const length of lengths) {
    const chunk = new Chunk(length);
    const found = await source.read(chunk, length);
    const wanted = DATA.subarray(start, start + length);
    assert.equal(found, wanted.length);
    assert.equal(Buffer.compare(chunk.view(found), wanted), 0);
    start += found;
  }
}

test("bytes that are read ahead are those that are read", async () => {
  const source = opened();
  source.expect(0, 24 * MIB, 24 * MIB);
  assert.ok(await soon(() => written >= 24 * MIB));
  await source.seek(0, 24 * MIB);
  // Chunks end within what was read at once.
  await reads(source, 0, [5 * MIB + 3, 7, 19 * MIB - 10]);
  assert.equal(await source.read(new Chunk(4), 4), 0);
  assert.deepEqual(asked, [`bytes=0-${24 * MIB - 1}`]);
});

test("no more is read ahead than was asked for, and what follows comes from the stream", async () => {
  const source = opened();
  source.expect(0, null, MIB);
  await soon(() => written >= 40 * MIB, 1);
  assert.ok(written < 40 * MIB, `${written} bytes were sent`);
  await source.seek(0, null);
  await reads(source, 0, [MIB - 1, 2, 20 * MIB]);
  source.close();
});

test("who reads in the midst of it takes over", async () => {
  let release;
  pause = (at) => at === 2 * MIB && new Promise((done) => (release = done));
  const source = opened();
  source.expect(0, 8 * MIB, 8 * MIB);
  await source.seek(0, 8 * MIB);
  assert.ok(await soon(() => release));
  const reading = reads(source, 0, [4 * MIB, 4 * MIB]);
  release();
  await reading;
});

test("another part than the expected one is asked for again, and the expected one ends", async () => {
  const source = opened();
  source.expect(8 * MIB, 16 * MIB, MIB);
  source.expect(16 * MIB, 24 * MIB);
  await source.seek(12 * MIB, 16 * MIB);
  await reads(source, 12 * MIB, [4 * MIB]);
  source.close();
  assert.deepEqual(asked, [`bytes=${8 * MIB}-${16 * MIB - 1}`, `bytes=${12 * MIB}-${16 * MIB - 1}`]);
});

test("a stream that breaks off while it is read ahead is an error for its reader", async () => {
  const broken = new ReadableStream({
    type: "bytes",
    pull(controller) {
      controller.error(new Error("gone"));
    },
  });
  const reader = new ByteReader(broken);
  reader.readAhead(MIB);
  await new Promise((done) => setTimeout(done, 10));
  await assert.rejects(reader.fill(new Chunk(4), 4), /gone/);
});

test("a header is read of what comes ahead, and whoever opens the file next gets the whole stream", async () => {
  const source = await expectSource(url);
  const before = asked.length;
  let release;
  pause = (at) => at === 3 * MIB && new Promise((done) => (release = done));
  source.expect(0, 24 * MIB, 24 * MIB);
  const header = await openSource(url, true);
  const chunk = new Chunk(MIB);
  for (const start of [0, MIB + 5]) {
    assert.equal(await header.readAt(chunk, start, MIB), MIB);
    assert.equal(Buffer.compare(chunk.view(MIB), DATA.subarray(start, start + MIB)), 0);
  }
  assert.ok(await soon(() => release));
  header.close();
  const weights = await openSource(url, true);
  release();
  await weights.seek(0, 24 * MIB);
  await reads(weights, 0, [5 * MIB, 19 * MIB]);
  assert.deepEqual(asked.slice(before), [`bytes=0-${24 * MIB - 1}`]);
  // Other bytes are requested.
  assert.equal(await weights.readAt(chunk, 30 * MIB, MIB), MIB);
  assert.equal(asked.at(-1), `bytes=${30 * MIB}-${31 * MIB - 1}`);
  weights.close();
});

test("a stream ahead that breaks off is none for a header, which is asked for", async () => {
  const source = await expectSource(url);
  let broken = false;
  pause = (at) => {
    if (at < 2 * MIB || broken) return undefined;
    broken = true;
    server.closeAllConnections();
    return new Promise((done) => setTimeout(done, 10));
  };
  source.expect(0, 24 * MIB, 24 * MIB);
  const chunk = new Chunk(4 * MIB);
  assert.equal(await source.readAt(chunk, 0, 4 * MIB), 4 * MIB);
  assert.equal(Buffer.compare(chunk.view(4 * MIB), DATA.subarray(0, 4 * MIB)), 0);
  assert.deepEqual(asked.slice(-2), [`bytes=0-${24 * MIB - 1}`, `bytes=0-${4 * MIB - 1}`]);
  source.close();
});

test("the end of the first request ends what it did not take", async () => {
  const source = await expectSource(url);
  source.expect(0, 24 * MIB, 24 * MIB);
  const header = await openSource(url, true);
  assert.equal(await header.readAt(new Chunk(4), 0, 4), 4);
  header.close();
  dropExpected();
  const before = asked.length;
  const later = await openSource(url, true);
  await later.seek(0, 24 * MIB);
  await reads(later, 0, [MIB]);
  // A later request gives nothing back.
  later.close();
  assert.deepEqual(asked.slice(before), [null, `bytes=0-${24 * MIB - 1}`]);
});
