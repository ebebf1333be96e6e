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
    files: made("div", { id: "files", part: "files", className: "files", hidden: true }),
    attach: iconButton("attach", "Attach files", () => {}),
    microphone: iconButton("microphone", "Speak", () => {}),
    file: made("input", { id: "file", type: "file", multiple: true, hidden: true, ariaLabel: "Files of the message" }),
    retry: made("button", { id: "retry", part: "button retry", type: "button", textContent: "Try again" }),
    stop: made("button", { id: "stop", part: "button stop", type: "button", textContent: "Stop", hidden: true }),
    send: made("button", { id: "run", part: "button send", className: "primary", textContent: "Send" }),
  };
  const { log, welcome, list, error, heading, code, message, traceback, status, progress, form, prompt, clear, retry } =
    parts;
  log.append(welcome, list);
  const remedies = made("div", { className: "remedies" });
  remedies.append(retry, made("slot", { name: "error" }));
  const details = made("details", { id: "error-details" });
  details.append(made("summary", { textContent: "Details" }), code, traceback);
  error.append(heading, message, remedies, details);
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
  actions.append(parts.attach, parts.file, parts.microphone, clear, keys, parts.stop, parts.send);
  form.append(parts.files, prompt, actions);
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

/** Whether a key in a field sends its text: Enter, or with Ctrl or Cmd on a touch keyboard, where Enter breaks the line. */
export function sends({ key, shiftKey, isComposing, ctrlKey, metaKey }: KeyboardEvent): boolean {
  // While a word is composed, Enter ends the word.
  return key === "Enter" && !shiftKey && !isComposing && (ctrlKey || metaKey || hasMouse());
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

const ICONS = {
  again: "M20 11a8 8 0 1 0-2.3 6.7M20 5v6h-6",
  attach: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.5 3.5 0 0 1 5 5l-8.5 8.5a2 2 0 0 1-3-3L14 7",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  microphone: "M12 3a3 3 0 0 1 3 3v5a3 3 0 0 1-6 0V6a3 3 0 0 1 3-3zM6 11a6 6 0 0 0 12 0M12 17v4M9 21h6",
  remove: "M6 6l12 12M18 6L6 18",
  speak: "M4 9v6h4l5 4V5L8 9zM16 9a4 4 0 0 1 0 6M18.5 6.5a8 8 0 0 1 0 11",
};

/** A new button that shows an icon, with its name for those who point at it or hear it. */
export function iconButton(icon: keyof typeof ICONS, name: string, onClick: () => void): HTMLButtonElement {
  const element = button("", onClick, name);
  element.classList.add("icon");
  element.title = name;
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  drawing.setAttribute("viewBox", "0 0 24 24");
  drawing.ariaHidden = "true";
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", ICONS[icon]);
  drawing.append(path);
  element.append(drawing);
  return element;
}
