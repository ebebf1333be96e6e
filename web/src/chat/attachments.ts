// Files that go with a message: pictures for a model that sees, and the texts of other files.

import { CapstanError, type ContentPart } from "capstan-webgpu";
import { refused } from "./chat_errors";
import { made } from "./chat_parts";

/** A file of a message. It can be stored as JSON. */
export interface Attachment {
  name: string;
  /** A picture, as a `data:` address; undefined for a file of text. */
  picture?: string;
  /** The text of any other file, or the speech in a sound. */
  text?: string;
}

/** Writes down the speech in a sound. */
export type Hear = (file: File) => Promise<string>;

/** A picture with more bytes is made smaller: models read pictures in small sizes. */
const PICTURE_BYTES = 1_000_000;
/** The longer side of a picture that was made smaller, in pixels. */
const PICTURE_SIDE = 1536;
/** Characters of a file of text: about as many tokens as most models take in all. */
const LONGEST = 200_000;
/** Names of files of text for which browsers know no type, or a wrong one. */
const TEXTS = new RegExp(
  "\\.(txt|md|csv|tsv|json|jsonl|xml|html?|css|scss|js|mjs|cjs|ts|tsx|jsx|vue|svelte|py|ipynb|rs|go|c|h|cc|cpp|hpp|cs" +
    "|java|kt|swift|rb|php|pl|lua|r|jl|sh|bash|ps1|bat|sql|toml|ya?ml|ini|cfg|conf|env|log|tex|bib|srt|vtt|diff|patch)$",
  "i",
);
const PICTURES = /^image\/(png|jpeg|webp|gif|bmp)$/;

/** Whether a file can go with a message, by its type and its name. */
export function isAttachable({ type, name }: File): boolean {
  return PICTURES.test(type) || type === "application/pdf" || /^(text|audio)\//.test(type) || TEXTS.test(name);
}

/** Read a file. Throws OptionError for one that is of another kind, is too long or cannot be read. */
export async function attachmentOf(file: File, hear: Hear): Promise<Attachment> {
  const { name, type } = file;
  if (!isAttachable(file))
    throw refused(
      `${name} is ${type || "of an unknown type"}; give a picture, a sound, a PDF, or a file of text or code`,
    );
  try {
    if (PICTURES.test(type)) return { name, picture: await pictureOf(file) };
    const text = await (type === "application/pdf" ? textOfPdf : type.startsWith("audio/") ? hear : textOf)(file);
    if (text.length <= LONGEST) return { name, text };
    throw refused(`${name} has ${text.length} characters; a message takes ${LONGEST} of a file: give a part of it`);
  } catch (error) {
    if (error instanceof CapstanError) throw error;
    throw refused(`${name} cannot be read: ${(error as Error).message}`);
  }
}

/** The content of a message: its text after the texts of its files, and its pictures, as OpenAI's API has them. */
export function contentOf(asked: string, attached: readonly Attachment[]): string | ContentPart[] {
  const files = attached.flatMap(({ name, text }) => (text === undefined ? [] : [`${name}:\n\n${fenced(text)}\n\n`]));
  const text = files.join("") + asked;
  const pictures = attached.flatMap(({ picture }) =>
    picture === undefined ? [] : [{ type: "image_url" as const, image_url: { url: picture } }],
  );
  return pictures.length ? [...pictures, { type: "text", text }] : text;
}

/** An element that shows a file: its picture, or its name. */
export function chipOf({ name, picture }: Attachment): HTMLElement {
  if (picture === undefined) return made("span", { part: "file", className: "file", textContent: name });
  return made("img", { part: "picture", className: "picture", src: picture, alt: name, title: name });
}

/** A text as a block of Markdown, which it does not end itself. */
function fenced(text: string): string {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map(({ length }) => length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

async function textOf(file: File): Promise<string> {
  const text = await file.text();
  if (text.includes("\0")) throw new Error("it is no text");
  return text;
}

async function textOfPdf(file: File): Promise<string> {
  const { pdfText } = await import("./pdf_text.js");
  const text = await pdfText(await file.arrayBuffer());
  if (!text.trim()) throw new Error("it has pictures of pages and no text; give the pages as pictures");
  return text;
}

/** A picture as a `data:` address, made smaller if the file is large. */
async function pictureOf(file: File): Promise<string> {
  if (file.size <= PICTURE_BYTES) return dataAddress(file);
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, PICTURE_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = new OffscreenCanvas(Math.round(bitmap.width * scale), Math.round(bitmap.height * scale));
  canvas.getContext("2d")!.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return dataAddress(await canvas.convertToBlob({ type: "image/jpeg", quality: 0.9 }));
}

function dataAddress(blob: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(reader.error!);
    reader.readAsDataURL(blob);
  });
}
