// Grammars for constrained decoding: xgrammar's WebAssembly build, which is loaded for the first grammar.
//
// py_src/capstan/local/grammars.mjs does the same on CPython.

import { dependencies } from "../../../package.json";
import { type Assets, findAsset } from "../wire/assets";
import { EngineError } from "../wire/errors";

interface XGrammar {
  Grammar: { fromEBNF(text: string): Promise<Disposable> };
  TokenizerInfo: {
    createTokenizerInfo(
      tokens: string[],
      kind: "byte_level",
      prependSpace: boolean,
      size: number,
      stop: number[],
    ): Promise<Disposable>;
  };
  GrammarCompiler: { createGrammarCompiler(info: Disposable, cache: boolean): Promise<Compiler> };
  GrammarMatcher: { createGrammarMatcher(compiled: Disposable): Promise<XMatcher> };
}
interface Disposable {
  dispose(): void;
}
interface Compiler extends Disposable {
  compileGrammar(grammar: Disposable): Promise<Disposable>;
}
interface XMatcher extends Disposable {
  acceptToken(token: number): boolean;
  rollBack(tokens: number): void;
  getNextTokenBitmask(): Promise<Int32Array>;
  findJumpForwardString(): string;
}

const FILE = "xgrammar/index.js";

/** The library's output before it gave up: it prints its reasons. */
let said: string[] = [];
let library: Promise<XGrammar> | null = null;
let loads = 0;

/** The library; a new instance after one gave up, since its memory cannot be trusted then. */
function load(assets: Assets): Promise<XGrammar> {
  library ??= (async () => {
    const url = findAsset(assets, FILE);
    if (url === null)
      throw new EngineError(
        "GuidanceError",
        "it is not known where this page has xgrammar; call capstan.configure(xgrammar_url=...) with the address of a " +
          `folder that has lib/index.js of npm's @mlc-ai/web-xgrammar ${dependencies["@mlc-ai/web-xgrammar"]}`,
      );
    await import(`${url}?${loads++}`);
    const found = (globalThis as unknown as { xgrammar: XGrammar }).xgrammar;
    // The WebAssembly module starts at the first call, and takes the console's function then.
    const { error } = console;
    console.error = (...parts: unknown[]) => said.push(parts.join(" "));
    try {
      const starting = found.Grammar.fromEBNF('root ::= ""');
      console.error = error;
      (await starting).dispose();
    } finally {
      console.error = error;
    }
    return found;
  })();
  library.catch(() => (library = null));
  return library;
}

/** Run what may make the library give up; its reason then is the error's message. */
async function reasoned<T>(work: () => Promise<T>): Promise<T> {
  said = [];
  try {
    return await work();
  } catch (error) {
    library = null;
    const reason = said.find((text) => text.startsWith("[FATAL]"));
    throw new EngineError("GuidanceError", reason ?? (error instanceof Error ? error.message : String(error)));
  }
}

/** Grammars over the tokens of one model, by id, in the alphabet of byte-level tokenizers. */
export class Grammars {
  private constructor(
    private readonly assets: Assets,
    private readonly tokens: string[],
    private readonly stop: number[],
    private compiler: Compiler,
    private made: XGrammar,
  ) {}

  /** `tokens` and `stop`, the ids that end an output, are JSON lists. */
  static async open(assets: Assets, tokens: string, stop: string): Promise<Grammars> {
    const [all, ends] = [JSON.parse(tokens) as string[], JSON.parse(stop) as number[]];
    const found = await load(assets);
    return new Grammars(assets, all, ends, await Grammars.compilerOf(found, all, ends), found);
  }

  private static compilerOf(found: XGrammar, tokens: string[], stop: number[]): Promise<Compiler> {
    return reasoned(async () => {
      const info = await found.TokenizerInfo.createTokenizerInfo(tokens, "byte_level", false, tokens.length, stop);
      // Its cache would keep every grammar that was ever compiled.
      return found.GrammarCompiler.createGrammarCompiler(info, false);
    });
  }

  /** A matcher for a grammar in EBNF. */
  async compile(text: string): Promise<GrammarMatcher> {
    const found = await load(this.assets);
    if (found !== this.made) {
      this.compiler = await Grammars.compilerOf(found, this.tokens, this.stop);
      this.made = found;
    }
    return reasoned(async () => {
      const grammar = await found.Grammar.fromEBNF(text);
      const compiled = await this.compiler.compileGrammar(grammar);
      const matcher = await found.GrammarMatcher.createGrammarMatcher(compiled);
      compiled.dispose();
      grammar.dispose();
      return new GrammarMatcher(matcher);
    });
  }
}

/** How far an output has come in a grammar. */
export class GrammarMatcher {
  constructor(private readonly matcher: XMatcher) {}

  accept(token: number): boolean {
    return this.matcher.acceptToken(token);
  }

  rollBack(tokens: number): void {
    this.matcher.rollBack(tokens);
  }

  /** The tokens that may come next: a bit each, in u32 words. */
  mask(): Promise<Int32Array> {
    return this.matcher.getNextTokenBitmask();
  }

  ahead(): string {
    return this.matcher.findJumpForwardString();
  }

  close(): void {
    this.matcher.dispose();
  }
}
