// Builds the shadow root of <capstan-chat>.

import style from "./chat.css";

export const LABEL = "Message";
export type Parts = ReturnType<typeof build>;

/** The ids are for this shadow root alone; pages style by parts. */
export function build(root: ShadowRoot) {
  const parts = {
    // It can be scrolled, so it must be in reach of the keyboard.
    log: made("div", { id: "conversation", part: "log", role: "log", tabIndex: 0, ariaLabel: "Conversation" }),
    welcome: made("slot", { name: "welcome" }),
    list: made("div", { id: "turns", part: "turns" }),
    error: made("div", { id: "error", part: "error", role: "alert", hidden: true }),
    heading: made("strong", { id: "error-title" }),
    code: made("code", { id: "error-code" }),
    message: made("p", { id: "error-message" }),
    traceback: made("pre", { id: "error-traceback", tabIndex: 0 }),
    status: made("p", { id: "status", part: "status", role: "status" }),
    progress: made("progress", { id: "progress", part: "progress", hidden: true, ariaLabel: "Bytes loaded" }),
    form: made("form", { part: "form", className: "composer" }),
    prompt: made("textarea", {
      ...{ id: "prompt", part: "input", rows: 2, ariaLabel: LABEL, disabled: true },
      ...{ autocomplete: "off", enterKeyHint: "send" },
    }),
    clear: made("button", {
      id: "clear",
      part: "button clear",
      className: "quiet",
      type: "button",
      textContent: "New",
    }),
    keep: made("button", { id: "keep", part: "button keep", className: "quiet", type: "button", hidden: true }),
    stop: made("button", { id: "stop", part: "button stop", type: "button", textContent: "Stop" }),
    send: made("button", { id: "run", part: "button send", textContent: "Send" }),
  };
  const { log, welcome, list, error, heading, code, message, traceback, status, progress, form, prompt, clear, keep } =
    parts;
  keep.textContent = "Keep as it was";
  log.append(welcome, list);
  const details = made("details", { id: "error-details" });
  details.append(made("summary", { textContent: "Traceback" }), traceback);
  error.append(heading, message, code, details);
  const state = made("div", { className: "state" });
  state.append(status, progress);
  const keys = made("span", { id: "keys", part: "hint", className: "hint" });
  keys.append(
    ...[made("kbd", { textContent: "Enter" }), " sends, ", made("kbd", { textContent: "Shift" }), " "],
    ...[made("kbd", { textContent: "Enter" }), " breaks the line, ", made("kbd", { textContent: "Esc" }), " stops"],
  );
  prompt.setAttribute("aria-describedby", keys.id);
  parts.send.setAttribute("aria-keyshortcuts", "Control+Enter");
  const actions = made("div", { className: "actions" });
  actions.append(clear, keep, keys, parts.stop, parts.send);
  form.append(prompt, actions);
  const write = made("div", { part: "write", className: "write" });
  const below = made("div", {});
  below.append(made("slot", { name: "below" }));
  write.append(error, state, form, below);
  // A policy of the page (style-src) lets a sheet in that it would keep out as an element.
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(style);
  root.adoptedStyleSheets = [sheet];
  root.append(log, write);
  return parts;
}

export function hasMouse(): boolean {
  return matchMedia("(pointer: fine)").matches;
}

/** A new element with its properties; `part` is its name for the page's styles. */
export function made<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  { part, ...rest }: Partial<Omit<HTMLElementTagNameMap[Tag], "part">> & { part?: string },
): HTMLElementTagNameMap[Tag] {
  const element = Object.assign(document.createElement(tag), rest);
  if (part) element.setAttribute("part", part);
  return element;
}

/** A new button of little weight. */
export function button(text: string, onClick: () => void, ariaLabel: string | null = null): HTMLButtonElement {
  const element = made("button", { part: "button", className: "quiet", type: "button", textContent: text, ariaLabel });
  element.addEventListener("click", onClick);
  return element;
}
