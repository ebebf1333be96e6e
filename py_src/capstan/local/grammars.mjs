// Compiles grammars and matches tokens for capstan.local.grammars: a call a JSON line, an answer a JSON line.
// web/src/worker/grammars.ts does the same in a page.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const PACKAGE = "@mlc-ai/web-xgrammar";
const say = console.log;
const said = [];
// Its reasons go to the console, to which it holds on when it starts.
console.log = console.warn = () => undefined;
console.error = (...parts) => said.push(parts.join(" "));
// It was bundled for CommonJS, and is an ES module by its package.json.
globalThis.require = createRequire(import.meta.url);
globalThis.__filename = import.meta.filename ?? new URL(import.meta.url).pathname;

let loads = 0;
let library = null;
const held = [];
const hold = (item) => held.push(item) - 1;

async function load() {
  if (library === null) {
    const found = pathToFileURL(createRequire(`${process.cwd()}/`).resolve(PACKAGE)).href;
    await import(`${found}?${loads++}`);
    library = globalThis.xgrammar;
  }
  return library;
}

const calls = {
  async open(tokens, stop) {
    const { TokenizerInfo, GrammarCompiler } = await load();
    const info = await TokenizerInfo.createTokenizerInfo(tokens, "byte_level", false, tokens.length, stop);
    return hold({ tokens, stop, library, compiler: await GrammarCompiler.createGrammarCompiler(info, false) });
  },
  async compile(index, text) {
    const vocabulary = held[index];
    if (vocabulary.library !== (await load())) Object.assign(vocabulary, held[await calls.open(vocabulary.tokens, vocabulary.stop)]);
    const { Grammar, GrammarMatcher } = library;
    const grammar = await Grammar.fromEBNF(text);
    const compiled = await vocabulary.compiler.compileGrammar(grammar);
    const matcher = await GrammarMatcher.createGrammarMatcher(compiled);
    compiled.dispose();
    grammar.dispose();
    return hold(matcher);
  },
  accept: (index, token) => held[index].acceptToken(token),
  rollBack: (index, tokens) => held[index].rollBack(tokens),
  async mask(index) {
    const mask = await held[index].getNextTokenBitmask();
    return Buffer.from(mask.buffer, mask.byteOffset, mask.byteLength).toString("base64");
  },
  ahead: (index) => held[index].findJumpForwardString(),
  close(index) {
    held[index].dispose();
    held[index] = null;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...given] = JSON.parse(line);
  said.length = 0;
  let answer;
  try {
    answer = { result: (await calls[name](...given)) ?? null };
  } catch (error) {
    // The library aborts on a fatal error. Its memory cannot be trusted then: the next call gets a new instance.
    library = null;
    answer = { error: said.find((text) => text.startsWith("[FATAL]")) ?? error.message, code: error.code };
  }
  say(JSON.stringify(answer));
}
