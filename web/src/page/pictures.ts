// Pictures in the messages of a chat: their content parts, and what crosses to the worker of them.

import { CapstanError, refused, told } from "../wire/errors";
import { reading } from "./arguments";
import { shown } from "./kinds";
import { pageAddress } from "./load_in_worker";
import type { ContentPart, Message, PictureData } from "../wire/protocol";

const DRAWN = ["ImageBitmap", "HTMLCanvasElement", "OffscreenCanvas"];
const BYTES = ["ArrayBuffer", "Uint8Array"];
const FILES = ["Blob", "File"];
const KINDS = [...DRAWN, ...BYTES, ...FILES, "ImageData"];
const WORDS = "a Blob, a File, an ImageBitmap, a canvas, ImageData, an ArrayBuffer, a Uint8Array or an address";
const PROTOCOLS = ["data:", "blob:", "http:", "https:"];
const UNHEARD = ["audio", "audio_url", "input_audio", "video", "video_url"];
/** LARGEST_SIDE and MOST_PIXELS of py_src/capstan/picture/picture_file.py. */
const LARGEST_SIDE = 16_384;
const MOST_PIXELS = 1 << 26;
const MOST_BYTES = 1 << 28;

/** Reads a picture that was taken from a message. */
export type Reading = (signal: AbortSignal) => PictureData | Promise<PictureData>;

/** Messages with the numbers of their pictures, and these. Throws OptionError, PictureError. */
export function takePictures(messages: readonly Message[]): { messages: Message[]; pictures: Reading[] } {
  const pictures: Reading[] = [];
  return { messages: messages.map((each, place) => withoutPictures(each, `messages[${place}]`, pictures)), pictures };
}

/** A message whose pictures stay what they are now, for later turns. */
export function heldMessage(message: Message): Message {
  const held = (picture: unknown): unknown =>
    DRAWN.includes(nameOf(picture)) ? drawn(picture as ImageBitmap, "the picture") : picture;
  const part = (given: unknown): unknown => (isImage(given) ? { ...given, image: held(given.image) } : held(given));
  try {
    if (!Array.isArray(message.content)) return message;
    return { ...message, content: message.content.map(part) as ContentPart[] };
  } catch (error) {
    if (error instanceof CapstanError) throw error;
    // The next run reads it and says what is wrong.
    return message;
  }
}

/** Messages that JSON can hold: each picture is a `data:` address with its content, or as PNG with its pixels. */
export async function plainMessages(messages: readonly Message[]): Promise<Message[]> {
  const { messages: taken, pictures } = reading("messages", () => takePictures(messages));
  const { signal } = new AbortController();
  const addresses = await Promise.all(pictures.map(async (read) => dataAddress(await read(signal))));
  const part = (given: unknown): unknown => {
    const { type, picture } = (given ?? {}) as { type?: unknown; picture?: unknown };
    return type === "image" ? { type: "image_url", image_url: addresses[picture as number] } : given;
  };
  const plain = (message: Message): Message =>
    Array.isArray(message.content) ? { ...message, content: message.content.map(part) as ContentPart[] } : message;
  return taken.map(plain);
}

async function dataAddress({ width, height, bytes }: PictureData): Promise<string> {
  let content = new Blob([bytes as Uint8Array<ArrayBuffer>]);
  if (width && height) {
    const canvas = new OffscreenCanvas(width, height);
    canvas.getContext("2d")!.putImageData(new ImageData(new Uint8ClampedArray(bytes), width, height), 0, 0);
    content = await canvas.convertToBlob();
  }
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(pictureError(`a picture cannot be read (${told(reader.error)}); pick it again`));
    reader.readAsDataURL(content);
  });
}

function isImage(part: unknown): part is { type: "image"; image: unknown } {
  return (part as { type?: unknown } | null)?.type === "image";
}

function nameOf(value: unknown): string {
  return Object.prototype.toString.call(value).slice(8, -1);
}

/** A message with the numbers of its pictures, whose readings are added to `pictures`. */
function withoutPictures(message: Message, place: string, pictures: Reading[]): Message {
  if (!Array.isArray(message?.content)) return message;
  const content = message.content.map((part: unknown, at) => {
    const where = `${place}.content[${at}]`;
    const source = sourceOf(part, where);
    if (source === undefined) return part;
    pictures.push(readingOf(source, where));
    return { type: "image", picture: pictures.length - 1 };
  });
  return { ...message, content: content as ContentPart[] };
}

/** The picture in a part of a message; undefined if it has none. */
function sourceOf(part: unknown, where: string): unknown {
  if (KINDS.includes(nameOf(part))) return part;
  if (nameOf(part) !== "Object")
    throw refused(`${where} is ${shown(part)}; it must be an object with a type, or ${WORDS}`);
  const { type, image, image_url: url, data, mediaType } = part as Record<string, unknown>;
  if (UNHEARD.includes(type as string))
    throw refused(
      `${where}.type is ${shown(type)}: no model hears or watches in a chat; Capstan.loadTranscriber turns speech into text`,
    );
  if (type === "image") return required(image, `${where}.image`);
  if (type === "image_url") return addressOf(url, `${where}.image_url`);
  if (type !== "file") return undefined;
  if (typeof mediaType !== "string" || !/^image(\/|$)/.test(mediaType))
    throw refused(`${where}.mediaType is ${shown(mediaType)}; a model that sees takes files of images: leave it out`);
  return required(data, `${where}.data`);
}

function required(source: unknown, where: string): unknown {
  if (typeof source === "string" || KINDS.includes(nameOf(source)) || nameOf(source) === "URL") return source;
  throw refused(`${where} is ${shown(source)}; it must be ${WORDS}`);
}

/** The address in OpenAI's part. `detail` is refused: a model reads pictures in its own size. */
function addressOf(given: unknown, where: string): string {
  const { url, detail } =
    typeof given === "string" ? { url: given, detail: null } : ((given ?? {}) as Record<string, unknown>);
  if (detail != null && detail !== "auto")
    throw refused(`${where}.detail is ${shown(detail)}; a model reads pictures in its own size: leave it out`);
  if (typeof url !== "string") throw refused(`${where}.url is ${shown(url)}; it must be an address`);
  return url;
}

/** Pixels and bytes are taken now, files and addresses when the request is sent. */
function readingOf(source: unknown, where: string): Reading {
  const name = nameOf(source);
  if (DRAWN.includes(name)) source = drawn(source as ImageBitmap, where);
  if (DRAWN.includes(name) || name === "ImageData") {
    const { width, height, data } = source as ImageData;
    const pixels = { width, height, bytes: new Uint8Array(data) };
    return () => pixels;
  }
  if (BYTES.includes(name)) {
    const bytes = new Uint8Array(source as Uint8Array).slice();
    return () => ({ width: null, height: null, bytes });
  }
  if (FILES.includes(name)) return () => contentOf(source as Blob, where);
  const address = addressIn(String(source), where);
  return (signal) => fetched(address, where, signal);
}

/** An address that is of a picture, as a whole. */
function addressIn(text: string, where: string): string {
  try {
    const url = new URL(text, pageAddress());
    if (PROTOCOLS.includes(url.protocol)) return url.href;
  } catch {
    // It is reported below.
  }
  throw refused(`${where}: ${shown(text)} is no address of a picture; it must begin with ${PROTOCOLS.join(", ")}`);
}

async function fetched(address: string, where: string, signal: AbortSignal): Promise<PictureData> {
  const name = address.startsWith("data:") ? "its data: address" : address.slice(0, 200);
  let blob: Blob;
  try {
    blob = address.startsWith("data:") ? inAddress(address) : await answerOf(address, signal);
  } catch (error) {
    throw pictureError(`${where}: ${name} cannot be read (${told(error)}); correct it, or give the file itself`);
  }
  return contentOf(blob, where);
}

async function answerOf(address: string, signal: AbortSignal): Promise<Blob> {
  const answer = await fetch(address, { signal });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.blob();
}

/** The content of a `data:` address, without a request: a page's policy may forbid one. */
function inAddress(address: string): Blob {
  const comma = address.indexOf(",");
  if (comma < 0) throw new Error("it has no comma");
  const byte = (_: string, hex: string): string => String.fromCharCode(parseInt(hex, 16));
  const content = address.slice(comma + 1).replace(/%([0-9a-f]{2})/gi, byte);
  const letters = /;base64$/i.test(address.slice(0, comma)) ? atob(content) : content;
  return new Blob([Uint8Array.from(letters, (letter) => letter.charCodeAt(0))]);
}

async function contentOf(blob: Blob, where: string): Promise<PictureData> {
  if (blob.size > MOST_BYTES)
    throw pictureError(`${where}: the file has ${blob.size} bytes; it may have ${MOST_BYTES}`);
  try {
    return { width: null, height: null, bytes: new Uint8Array(await blob.arrayBuffer()) };
  } catch (error) {
    throw pictureError(`${where}: the file cannot be read (${told(error)}); pick it again`);
  }
}

/** The pixels of what can be drawn. */
function drawn(source: ImageBitmap | HTMLCanvasElement | OffscreenCanvas, where: string): ImageData {
  const { width, height } = source;
  if (!width || !height)
    throw pictureError(`${where}: the picture has ${width} x ${height} pixels; give one that is open`);
  if (Math.max(width, height) > LARGEST_SIDE || width * height > MOST_PIXELS)
    throw pictureError(
      `${where}: the picture has ${width} x ${height} pixels; a side may have ${LARGEST_SIDE}, and the whole ${MOST_PIXELS}: ` +
        "make it smaller",
    );
  try {
    const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true })!;
    context.drawImage(source, 0, 0);
    return context.getImageData(0, 0, width, height);
  } catch (error) {
    // A canvas with a picture of another origin gives no pixels.
    throw pictureError(`${where}: its pixels cannot be read (${told(error)}); give the picture's file`);
  }
}

function pictureError(message: string): CapstanError {
  return new CapstanError({ type: "PictureError", message });
}
