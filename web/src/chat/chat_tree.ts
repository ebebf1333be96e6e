// The turns of a conversation as a tree: a question that was edited or asked again stays beside the new one.

import type { Attachment } from "./attachments";
import { refused } from "./chat_errors";
import type { ChatTurn } from "./chat_turn";

/** A turn as it is stored. A structured clone and JSON keep it, if they keep the page's `data`. */
export interface SavedTurn {
  asked: string;
  /** All of the model's text, with its reasoning. */
  answer: string;
  note: string;
  continues: boolean;
  /** The files of the question; undefined for none. */
  attached?: Attachment[];
  /** The place, in the list of turns, of the turn that this one follows; null for a first turn. */
  before: number | null;
  data?: unknown;
}

/** A conversation as it is stored, with all versions of its turns. */
export interface SavedConversation {
  turns: SavedTurn[];
  /** The place of the last turn that is shown; null for an empty conversation. */
  shown: number | null;
}

interface Place {
  turn: ChatTurn | null;
  before: Place | null;
  after: Place[];
  /** The one among those after it that is shown. */
  chosen: Place | null;
}

export class ChatTree {
  private readonly root: Place = { turn: null, before: null, after: [], chosen: null };
  private readonly places = new Map<ChatTurn, Place>();

  /** The turns of the conversation that is shown, in order. */
  get shown(): ChatTurn[] {
    const found: ChatTurn[] = [];
    for (let place = this.root.chosen; place; place = place.chosen) found.push(place.turn!);
    return found;
  }

  /** The turn that this one follows; null for a first turn. */
  before(turn: ChatTurn): ChatTurn | null {
    return this.places.get(turn)?.before?.turn ?? null;
  }

  /** All turns that follow the same turn as this one, which is among them. */
  beside(turn: ChatTurn): ChatTurn[] {
    return this.places.get(turn)?.before?.after.map((place) => place.turn!) ?? [];
  }

  has(turn: ChatTurn): boolean {
    return this.places.has(turn);
  }

  /** Show a new turn after another one, or as a first one. */
  add(turn: ChatTurn, before: ChatTurn | null): void {
    const parent = (before && this.places.get(before)) || this.root;
    const place: Place = { turn, before: parent, after: [], chosen: null };
    parent.after.push(place);
    this.places.set(turn, place);
    this.choose(turn);
  }

  /** Show a turn, with those that were shown after it last. */
  choose(turn: ChatTurn): void {
    for (let place = this.places.get(turn); place?.before; place = place.before) place.before.chosen = place;
  }

  /** Remove a turn and all that follow it, and return them; the turn beside it that came last is shown then. */
  remove(turn: ChatTurn): ChatTurn[] {
    const place = this.places.get(turn);
    if (!place) return [];
    const parent = place.before!;
    parent.after.splice(parent.after.indexOf(place), 1);
    if (parent.chosen === place) parent.chosen = parent.after.at(-1) ?? null;
    return this.forget(place);
  }

  /** Remove all turns that follow this one, and return them. */
  cut(turn: ChatTurn): ChatTurn[] {
    const place = this.places.get(turn);
    if (!place) return [];
    const gone = place.after.flatMap((after) => this.forget(after));
    place.after = [];
    place.chosen = null;
    return gone;
  }

  clear(): ChatTurn[] {
    const gone = [...this.places.keys()];
    this.places.clear();
    Object.assign(this.root, { after: [], chosen: null });
    return gone;
  }

  save(): SavedConversation {
    // A turn is added after the one that it follows.
    const turns = [...this.places.keys()];
    const at = (turn: ChatTurn | null | undefined): number | null => (turn ? turns.indexOf(turn) : null);
    const saved = turns.map((turn) => {
      const { asked, answer, note, continues, attached, data } = turn;
      const more = { ...(attached.length ? { attached: [...attached] } : {}), ...(data === undefined ? {} : { data }) };
      return { asked, answer, note, continues, before: at(this.before(turn)), ...more };
    });
    return { turns: saved, shown: at(this.shown.at(-1)) };
  }

  private forget(place: Place): ChatTurn[] {
    this.places.delete(place.turn!);
    return [place.turn!, ...place.after.flatMap((after) => this.forget(after))];
  }
}

function isAttachment(value: unknown): boolean {
  const { name, picture, text } = (value ?? {}) as Partial<Attachment>;
  if (typeof name !== "string" || (picture === undefined) === (text === undefined)) return false;
  return picture === undefined ? typeof text === "string" : /^data:image\/[a-z]+;base64,/.test(String(picture));
}

/** Throws OptionError for a conversation that `CapstanChat.save` cannot have returned. */
export function checkSaved({ turns, shown }: SavedConversation): void {
  const wrong = turns.findIndex((turn: Partial<SavedTurn> | null, at) => {
    const { asked, answer, note, continues, attached = [], before = NaN } = turn ?? {};
    if (!Array.isArray(attached) || !attached.every(isAttachment)) return true;
    if ([asked, answer, note].some((text) => typeof text !== "string") || typeof continues !== "boolean") return true;
    return before !== null && !(Number.isInteger(before) && before >= 0 && before < at);
  });
  const place = wrong >= 0 ? `turn ${wrong}` : shown !== null && !turns[shown] ? "the last turn that is shown" : "";
  if (!place) return;
  throw refused(`the conversation cannot be restored: ${place} is damaged; give what save() returned`);
}
