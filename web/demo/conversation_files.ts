// Conversations outside this browser: as OpenAI's messages, as Markdown, and in a link.

import type { Message } from "capstan-webgpu";
import type { SavedConversation, SavedTurn } from "../src/chat/chat";
import { type Attachment, contentOf } from "../src/chat/attachments";
import { refused } from "../src/chat/chat_errors";
import { checkSaved } from "../src/chat/chat_tree";
import { splitReasoning } from "../src/chat/reasoning";
import type { Kept } from "./conversation_store";

/** A conversation of a file or a link. */
export type Given = Pick<Kept, "title" | "system" | "conversation">;

/** Characters of a link: some programs cut longer ones. */
const LINK_LIMIT = 30_000;
const ROLES = ["system", "user", "assistant"];

/** The turns that are shown, in order. */
function shownTurns({ turns, shown }: SavedConversation): SavedTurn[] {
  const found: SavedTurn[] = [];
  for (let at = shown; at !== null; at = turns[at]!.before) found.unshift(turns[at]!);
  return found;
}

const reply = ({ answer, continues }: SavedTurn): string =>
  continues ? answer : splitReasoning(answer, { growing: false, begun: false }).answer;

/** The messages that are shown, as OpenAI's API has them. */
export function messagesOf({ system, conversation }: Given): Message[] {
  const said = shownTurns(conversation).flatMap((turn) => [
    { role: "user", content: contentOf(turn.asked, turn.attached ?? []) },
    ...(turn.answer ? [{ role: "assistant", content: reply(turn) }] : []),
  ]);
  return [...(system ? [{ role: "system", content: system }] : []), ...said];
}

/** A file in JSON: OpenAI's `messages`, and `capstan` with the versions that are not shown. */
export function asJson(kept: Given): string {
  const turns = kept.conversation.turns.map(({ data: _, ...turn }) => turn);
  const capstan = { turns, shown: kept.conversation.shown };
  return JSON.stringify({ title: kept.title, messages: messagesOf(kept), capstan }, null, 2);
}

export function asMarkdown(kept: Given): string {
  const names: Record<string, string> = { system: "System", user: "You", assistant: "Model" };
  const parts = messagesOf(kept).map(({ role, content }) => `## ${names[role]}\n\n${textIn(content)}\n`);
  return `# ${kept.title}\n\n${parts.join("\n")}`;
}

/** The text of a message's content; pictures are told as such. */
export function textIn(content: Message["content"]): string {
  if (typeof content === "string") return content;
  return content
    .map((part) => (typeof part === "object" && "type" in part && part.type === "text" ? part.text : "(a picture)"))
    .join("\n\n");
}

/** Conversations of a file in JSON: one, a list of them, or a list of messages. Throws OptionError for anything else. */
export function fromJson(text: string, name: string): Given[] {
  let found: unknown;
  try {
    found = JSON.parse(text);
  } catch {
    throw refused(`${name} is not JSON; give a file that was exported here, or OpenAI's messages`);
  }
  const list = Array.isArray(found) && found.every((each) => isObject(each) && "messages" in each) ? found : [found];
  if (!list.length) throw refused(`${name} has no conversation`);
  return list.map((each) => {
    const { title, messages, capstan } = (Array.isArray(each) ? { messages: each } : each) as Record<string, unknown>;
    if (!Array.isArray(messages)) throw refused(`${name} has no list "messages"; give OpenAI's messages`);
    const given = fromMessages(messages, name);
    if (isObject(capstan) && Array.isArray(capstan["turns"])) {
      const { turns, shown } = capstan as unknown as SavedConversation;
      checkSaved({ turns, shown });
      const kept = turns.map(({ asked, answer, note, continues, before, attached = [] }) => ({
        ...{ asked, answer, note, continues, before },
        ...(attached.length ? { attached } : {}),
      }));
      given.conversation = { turns: kept, shown };
    }
    return typeof title === "string" && title ? { ...given, title } : given;
  });
}

function fromMessages(messages: unknown[], name: string): Given {
  let system = "";
  const turns: SavedTurn[] = [];
  messages.forEach((message, at) => {
    const { role, content } = (isObject(message) ? message : {}) as { role?: unknown; content?: unknown };
    const where = `message ${at} of ${name}`;
    if (typeof role !== "string" || !ROLES.includes(role))
      throw refused(`the role of ${where} is ${JSON.stringify(role)}; this page takes ${ROLES.join(", ")}`);
    const last = turns.at(-1);
    const { text, attached } = partsOf(content, where);
    if (role === "system" && at === 0) system = text;
    else if (role === "user") {
      const before = turns.length ? turns.length - 1 : null;
      const files = attached.length ? { attached } : {};
      turns.push({ asked: text, answer: "", note: "", continues: false, before, ...files });
    } else if (role === "assistant" && last && !last.answer) last.answer = text;
    else throw refused(`${where} is out of turn: system comes first, then user and assistant by turns`);
  });
  const conversation = { turns, shown: turns.length ? turns.length - 1 : null };
  return { title: titleOf(conversation), system, conversation };
}

/** The text and the pictures of a message from a file. */
function partsOf(content: unknown, where: string): { text: string; attached: Attachment[] } {
  const attached: Attachment[] = [];
  const texts = (Array.isArray(content) ? (content as unknown[]) : [content]).map((part) => {
    const { type, text, image_url: image } = (isObject(part) ? part : { type: "text", text: part }) as PartOfFile;
    if (type === "text" && typeof text === "string") return text;
    const picture = isObject(image) ? image["url"] : image;
    if (typeof picture !== "string" || !picture.startsWith("data:image/"))
      throw refused(`the content of ${where} is neither text nor a picture's data: address; this page takes those`);
    attached.push({ name: `picture ${attached.length + 1}`, picture });
    return "";
  });
  return { text: texts.filter(Boolean).join("\n\n"), attached };
}

/** The first words of a conversation. */
export function titleOf({ turns }: SavedConversation): string {
  const words = (turns[0]?.asked ?? "").trim().replaceAll(/\s+/g, " ");
  if (words.length <= 48) return words || "Without a question";
  return `${words.slice(0, 48).replace(/\s\S*$/, "")}…`;
}

/** The page's address with a conversation after its #, where no server sees it. Throws OptionError if it is too long. */
export async function linkOf(kept: Given): Promise<string> {
  const packed = new Blob([asJson(kept)]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(packed).arrayBuffer());
  const code = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  const address = new URL(location.href);
  address.hash = new URLSearchParams({ conversation: code.replaceAll("+", "-").replaceAll("/", "_") }).toString();
  const { length } = address.href;
  if (length <= LINK_LIMIT) return address.href;
  throw refused(
    `a link would have ${length} characters, the limit is ${LINK_LIMIT}; export the conversation as a file`,
  );
}

/** The conversation of a link; null if it has none. Throws OptionError for one that is damaged. */
export async function fromLink(hash: string): Promise<Given | null> {
  const code = new URLSearchParams(hash.replace(/^#/, "")).get("conversation");
  if (code === null) return null;
  let text: string;
  try {
    const bytes = Uint8Array.from(atob(code.replaceAll("-", "+").replaceAll("_", "/")), (each) => each.charCodeAt(0));
    const whole = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    text = await new Response(whole).text();
  } catch {
    throw refused("the conversation of this link is damaged; ask for the link again");
  }
  return fromJson(text, "the link")[0]!;
}

interface PartOfFile {
  type?: unknown;
  text?: unknown;
  image_url?: unknown;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}
