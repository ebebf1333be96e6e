// A column beside the conversation, where the page is wide enough; else a drawer over the conversation.

import { element } from "./elements";

export class Side {
  private readonly side: HTMLElement;
  private readonly narrow: MediaQueryList;

  /** Make a drawer of the element wherever the media query holds. The element has a button to close it, `ID-close`. */
  constructor(id: string, query: string) {
    this.side = element(id, HTMLElement);
    this.narrow = matchMedia(query);
    const fit = (): void => void (this.side.popover = this.narrow.matches ? "auto" : null);
    this.narrow.addEventListener("change", fit);
    fit();
    element(`${id}-close`, HTMLButtonElement).addEventListener("click", () => this.hide());
  }

  /** Whether the drawer is open over the conversation. */
  get open(): boolean {
    return this.side.popover !== null && this.side.matches(":popover-open");
  }

  /** Open the drawer, if this is one. */
  show(): void {
    if (this.side.popover !== null && !this.open) this.side.showPopover();
  }

  hide(): void {
    if (this.open) this.side.hidePopover();
  }
}

/** The column with the options and the diagnostics. */
export const optionsSide = new Side("side", "(max-width: 56rem)");
/** The list of conversations. */
export const chatsSide = new Side("chats", "(max-width: 85rem)");

/** Have links to the options lead there, and the button to the conversations. */
export function watchSides(): void {
  element("chats-open", HTMLButtonElement).addEventListener("click", () => chatsSide.show());
  for (const link of document.querySelectorAll<HTMLAnchorElement>('a[href="#options"]'))
    link.addEventListener("click", (event) => {
      // The part of the address after # holds the settings.
      event.preventDefault();
      optionsSide.show();
      const options = element("options", HTMLElement);
      options.scrollIntoView();
      options.focus({ preventScroll: true });
    });
}
