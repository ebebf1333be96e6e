// The list of conversations beside the chat: to choose, search, name, share and delete them.

import { button, element, made, say } from "./elements";
import { messagesOf, textIn } from "./conversation_files";
import { type Kept, lastFirst } from "./conversation_store";

/** The actions of the list, which the page carries out. */
export interface ConversationActions {
  open: (kept: Kept) => void;
  rename: (kept: Kept, title: string) => void;
  link: (kept: Kept) => void;
  save: (kept: Kept, form: "json" | "md") => void;
  delete: (kept: Kept) => void;
}

export class ConversationList {
  private readonly list = element("chats-list", HTMLUListElement);
  private readonly search = element("chats-search", HTMLInputElement);
  private kept: Kept[] = [];
  private current = "";
  /** The conversation whose title is being written. */
  private naming = "";

  constructor(private readonly actions: ConversationActions) {
    this.search.addEventListener("input", () => this.draw());
  }

  /** Show the conversations, of which the page shows one. */
  show(kept: Kept[], current: string): void {
    Object.assign(this, { kept, current });
    if (!this.naming) this.draw();
  }

  /** Show a conversation that is new or changed. */
  put(kept: Kept, current: string): void {
    const others = this.kept.filter(({ id }) => id !== kept.id);
    this.show([kept, ...others].sort(lastFirst), current);
  }

  remove(id: string): void {
    this.show(
      this.kept.filter((kept) => kept.id !== id),
      this.current,
    );
  }

  private draw(): void {
    const wanted = this.search.value.trim().toLocaleLowerCase();
    const found = this.kept.filter((kept) => !wanted || contains(kept, wanted));
    const focused = this.list.contains(document.activeElement)
      ? document.activeElement?.getAttribute("aria-label")
      : null;
    this.list.replaceChildren(...found.map((kept) => this.row(kept)));
    if (focused) this.list.querySelector<HTMLElement>(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
    const none = this.kept.length ? "No conversation has these words." : "What you write is kept in this browser.";
    say("chats-none", found.length ? "" : none);
  }

  private row(kept: Kept): HTMLLIElement {
    const { id, title } = kept;
    const row = made("li", "conversation");
    if (this.naming === id) {
      row.append(this.nameField(kept));
      return row;
    }
    const open = button(title, () => this.actions.open(kept), `Open: ${title}`);
    open.title = new Date(kept.changed).toLocaleString();
    row.append(open);
    if (id !== this.current) return row;
    open.ariaCurrent = "true";
    const actions = made("div", "row");
    const { link, save } = this.actions;
    actions.append(
      button("Rename", () => this.name(id), `Rename: ${title}`),
      button("Link", () => link(kept), `Copy a link that has it: ${title}`),
      button("JSON", () => save(kept, "json"), `Save as JSON: ${title}`),
      button("Markdown", () => save(kept, "md"), `Save as Markdown: ${title}`),
      button("Delete", () => this.actions.delete(kept), `Delete: ${title}`),
    );
    row.append(actions);
    return row;
  }

  private name(id: string): void {
    this.naming = id;
    this.draw();
    const field = this.list.querySelector("input");
    field?.focus();
    field?.select();
  }

  /** A field with the title: Enter or leaving it keeps the new one, Escape the old one. */
  private nameField(kept: Kept): HTMLInputElement {
    const field = made("input", "");
    field.value = kept.title;
    field.ariaLabel = `Title of: ${kept.title}`;
    const end = (keep: boolean): void => {
      if (this.naming !== kept.id) return;
      this.naming = "";
      const title = field.value.trim();
      if (keep && title && title !== kept.title) this.actions.rename(kept, title);
      this.draw();
    };
    field.addEventListener("blur", () => end(true));
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      end(event.key === "Enter");
    });
    return field;
  }
}

function contains(kept: Kept, wanted: string): boolean {
  const texts = [kept.title, ...messagesOf(kept).map(({ content }) => textIn(content))];
  return texts.some((each) => each.toLocaleLowerCase().includes(wanted));
}
