// Byte-level tokenizers write each byte as a printable character, in GPT-2's alphabet.

const PLAIN = [...range(0x21, 0x7e), ...range(0xa1, 0xac), ...range(0xae, 0xff)];
const OTHERS = [...range(0, 0xff)].filter((byte) => !PLAIN.includes(byte));
const BYTES = new Map<string, number>([
  ...PLAIN.map((byte) => [String.fromCharCode(byte), byte] as const),
  ...OTHERS.map((byte, place) => [String.fromCharCode(256 + place), byte] as const),
]);
const CHARACTERS: readonly string[] = [...BYTES].sort(([, a], [, b]) => a - b).map(([character]) => character);

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** A text's UTF-8 bytes, each as its character. */
export function bytesAsCharacters(text: string): string {
  let made = "";
  for (const byte of encoder.encode(text)) made += CHARACTERS[byte]!;
  return made;
}

/** Add to `bytes` those that a token's characters stand for; those of its text if it has any other character. */
export function appendBytes(bytes: number[], token: string): void {
  const before = bytes.length;
  for (const character of token) {
    const byte = BYTES.get(character);
    if (byte === undefined) {
      bytes.length = before;
      for (const each of encoder.encode(token)) bytes.push(each);
      return;
    }
    bytes.push(byte);
  }
}

/** The text of UTF-8 bytes, with U+FFFD for what is no character. */
export function textOfBytes(bytes: readonly number[]): string {
  return decoder.decode(Uint8Array.from(bytes));
}

function* range(first: number, last: number): Generator<number> {
  for (let each = first; each <= last; each++) yield each;
}
