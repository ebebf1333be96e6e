// The languages whose code is highlighted, by the names that answers use.

const NAMES = {
  bash: ["sh", "shell", "zsh", "console"],
  c: ["h"],
  cpp: ["c++", "cc", "cxx", "hpp"],
  css: [],
  diff: ["patch"],
  go: ["golang"],
  java: [],
  javascript: ["js", "jsx", "mjs", "cjs", "node"],
  json: ["jsonc", "json5"],
  python: ["py", "python3", "pycon"],
  rust: ["rs"],
  sql: ["sqlite", "postgresql", "mysql"],
  typescript: ["ts", "tsx", "mts", "cts"],
  xml: ["html", "xhtml", "svg", "rss", "plist"],
  yaml: ["yml"],
} as const satisfies Record<string, readonly string[]>;

/** As highlight.js calls it. */
export type Language = keyof typeof NAMES;

const languages = new Map<string, Language>();
for (const [language, others] of Object.entries(NAMES))
  for (const name of [language, ...others]) languages.set(name, language as Language);

/** The language of a code block by the words after its fence, undefined if it is not highlighted. */
export function languageOf(info: string): Language | undefined {
  return languages.get(nameIn(info).toLowerCase());
}

/** The first word after a fence. */
export function nameIn(info: string): string {
  return /^[^\s{,:]*/.exec(info)![0];
}
