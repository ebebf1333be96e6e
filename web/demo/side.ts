// The options and the rest beside the conversation; on a phone they are a drawer over it.

import { element } from "./elements";

const side = element("side", HTMLElement);
const narrow = matchMedia("(max-width: 56rem)");

/** Whether the drawer is open over the conversation. */
export function isSideOpen(): boolean {
  return side.popover !== null && side.matches(":popover-open");
}

/** Bring it in sight, as for a field in it. */
export function showSide(): void {
  if (side.popover !== null && !isSideOpen()) side.showPopover();
}

export function hideSide(): void {
  if (isSideOpen()) side.hidePopover();
}

/** Have links to the options lead there, and the drawer close. */
export function watchSide(): void {
  const fit = (): void => void (side.popover = narrow.matches ? "auto" : null);
  narrow.addEventListener("change", fit);
  fit();
  element("side-close", HTMLButtonElement).addEventListener("click", hideSide);
  for (const link of document.querySelectorAll<HTMLAnchorElement>('a[href="#options"]'))
    link.addEventListener("click", (event) => {
      // The part of the address after # holds the settings.
      event.preventDefault();
      showSide();
      const options = element("options", HTMLElement);
      options.scrollIntoView();
      options.focus({ preventScroll: true });
    });
}
