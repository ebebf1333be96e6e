// The phonemes of English texts for Kokoro models, by npm's phonemize (MIT): a dictionary, rules for other words, and the
// words' kinds where these decide. A file of its own, phonemes.js, which the worker imports for the first text.

import type { Phonemizer } from "phonemize/core";

// As CommonJS: the ES modules of the dictionaries would get an accessor for each of 125,000 words.
declare function require(name: "phonemize/core"): typeof import("phonemize/core");
declare function require(name: "phonemize/en-g2p"): { EnglishG2P: new () => never };
const { createPhonemizer } = require("phonemize/core");
const { EnglishG2P } = require("phonemize/en-g2p");

const VOWELS = "AIOQWYaeiouæɑɒɔəɛɜɝɪʊʌ";
/** The model has one symbol for these, or writes them in another way. */
const SYMBOLS: Record<string, string> = {
  ...{ dʒ: "ʤ", tʃ: "ʧ", eɪ: "A", aɪ: "I", oʊ: "O", əʊ: "Q", aʊ: "W", ɔɪ: "Y", ɫ: "l", g: "ɡ" },
  ...{ ɝː: "ɝ", ɚ: "ɝ" },
};
const WRITTEN = new RegExp(Object.keys(SYMBOLS).join("|"), "gu");
/** Words without stress; others of one syllable get it, which the library marks in longer words only. */
const LIGHT = new Set(
  (
    "ðə ə ən ænd ənd əv ɪz ɪn tu tə ət æt ɪt ɪts fɔɹ fɝ fɔː ɑɹ ɑː wʌz wəz wɪð bi hi ʃi wi ju jəɹ jɔɹ jə I mI bI ɑn ɔn æz əz ðət " +
    "ðæt həz hæz əv hæv həd hæd ɔɹ əɹ ɔː bət bʌt kæn kən hɪz hɝ fɹʌm fɹəm ðɛm ðəm ðA ɪf ðən ðæn du dəz wɝ"
  ).split(" "),
);
const WORDS = /[^\s;:,.!?—…"()“”]+/gu;
const STRESS = new RegExp(`([ˈˌ])([^${VOWELS}\\sˈˌ]+)`, "gu");
const VOWEL = new RegExp(`[${VOWELS}]`, "u");

let made: Phonemizer | null = null;

/** The phonemes as Kokoro models have learnt them; `language` is "en-US" or "en-GB". */
export function phonemize(text: string, language: string): string {
  made ??= createPhonemizer({ processors: [new EnglishG2P()] });
  const plain = text
    .normalize("NFD")
    .replace(/\p{M}/gu, "")
    .replace(/[’‘]/g, "'")
    .replace(/["*_#`~|<>^]/g, " ")
    .replace(/(?<=\d),(?=\d{3})/g, "")
    .replace(/(?<=\w)-(?=\w)/g, " ")
    .replace(/(?<=\p{Ll})(?=\p{Lu})/gu, " ")
    // The library looks words up in an object, which has these of its own.
    .replace(/\bconstructor/gi, "construct er")
    .replace(/&/g, " and ")
    // It tries all divisions of a word.
    .replace(/\S{40}/gu, "$& ");
  const ipa = made.toIPA(plain, { language });
  const known = ipa.replace(WRITTEN, (sound) => (language === "en-GB" && sound === "oʊ" ? "Q" : SYMBOLS[sound]!));
  return known
    .replace(STRESS, "$2$1")
    .replace(WORDS, stressed)
    .replace(/(?<=[ˈˌ])ɝ/gu, "ɜɹ")
    .replace(/ɝ/gu, "əɹ")
    .replace(/\s*([([“])\s*/g, " $1")
    .replace(/\s+([,.;:!?…)”])/g, "$1")
    .trim();
}

function stressed(word: string): string {
  return /[ˈˌ]/.test(word) || LIGHT.has(word) ? word : word.replace(VOWEL, "ˈ$&");
}
