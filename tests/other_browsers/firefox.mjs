// Drives one page of a Firefox for firefox.py: a JSON request a line on stdin, a JSON answer a line on stdout.

import { createInterface } from "node:readline";
import puppeteer from "puppeteer-core";

const [executablePath] = process.argv.slice(2);
const browser = await puppeteer.launch({
  browser: "firefox",
  executablePath,
  headless: true,
  protocolTimeout: 0,
  extraPrefsFirefox: {
    "dom.webgpu.enabled": true,
    "dom.webgpu.workers.enabled": true,
    "gfx.webgpu.ignore-blocklist": true,
  },
});
const page = await browser.newPage();
page.setDefaultTimeout(0);
const seen = [];
page.on("pageerror", (error) => seen.push({ kind: "pageerror", text: String(error) }));
page.on("console", (message) => seen.push({ kind: message.type(), text: message.text() }));

const answers = {
  version: () => browser.version(),
  init: ({ script }) => page.evaluateOnNewDocument(script),
  goto: ({ url }) => page.goto(url).then(() => null),
  evaluate: ({ script }) => page.evaluate(script),
};

const answer = async (request) => {
  try {
    return { value: (await answers[request.do](request)) ?? null, seen: seen.splice(0) };
  } catch (error) {
    return { error: String(error), seen: seen.splice(0) };
  }
};

for await (const line of createInterface({ input: process.stdin }))
  process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
await browser.close();
