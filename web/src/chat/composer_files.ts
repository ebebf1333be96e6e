// The files that wait in the composer of <capstan-chat> for the next message: by a button, by paste, or by drop.

import { type Attachment, attachmentOf, chipOf, type Hear, isAttachable } from "./attachments";
import { iconButton, made, type Parts } from "./chat_parts";

export class ComposerFiles {
  waiting: readonly Attachment[] = [];

  constructor(
    private readonly parts: Parts,
    private readonly host: HTMLElement,
    private readonly hear: Hear,
    private readonly fail: (error: unknown) => void,
  ) {
    const { attach, file, prompt } = parts;
    attach.addEventListener("click", () => file.click());
    file.addEventListener("change", () => {
      void this.add([...(file.files ?? [])]);
      file.value = "";
    });
    prompt.addEventListener("paste", (event) => this.take(event, event.clipboardData));
    host.addEventListener("dragover", (event) => {
      if (this.on && event.dataTransfer?.types.includes("Files")) event.preventDefault();
    });
    host.addEventListener("drop", (event) => this.take(event, event.dataTransfer));
  }

  /** Let these files wait. */
  show(files: readonly Attachment[]): void {
    this.waiting = files;
    const { files: list } = this.parts;
    list.hidden = files.length === 0;
    list.replaceChildren(
      ...this.waiting.map((each) => {
        const chip = made("span", { part: "attached", className: "attached" });
        const remove = iconButton("remove", `Remove ${each.name}`, () => {
          this.show(this.waiting.filter((other) => other !== each));
          this.host.focus();
        });
        chip.append(chipOf(each), remove);
        return chip;
      }),
    );
  }

  /** Read files and add them, all or none. */
  async add(files: readonly File[]): Promise<void> {
    try {
      const read = await Promise.all(files.map((file) => attachmentOf(file, this.hear)));
      this.show([...this.waiting, ...read]);
      this.host.focus();
    } catch (error) {
      this.fail(error);
    }
  }

  /** Show the button if the element takes files. */
  choose(): void {
    this.parts.attach.hidden = !this.on;
    if (!this.on) this.show([]);
  }

  private get on(): boolean {
    return this.host.hasAttribute("attachments");
  }

  private take(event: Event, data: DataTransfer | null): void {
    const files = [...(data?.files ?? [])];
    // Others are the page's, as a model that is dropped anywhere.
    if (!this.on || event.defaultPrevented || !files.length || !files.every(isAttachable)) return;
    event.preventDefault();
    void this.add(files);
  }
}
