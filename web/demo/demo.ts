// The demo page: a conversation with a model, its options, and what this machine does for it.

import type { CapstanEvent } from "capstan-webgpu";
import { Conversations } from "./conversations";
import { findAdapter, forecast } from "./diagnostics";
import { element } from "./elements";
import { Engine } from "./engine";
import { offerExamples } from "./examples";
import { fieldOf, isOfModel } from "./failure";
import { Fit } from "./fit";
import { Inside } from "./inside";
import { KeptComputations } from "./kept";
import { expectedModel, findModels, showChosen, watchPicking } from "./models";
import { Picker } from "./picker";
import { Race } from "./race";
import { Running } from "./running";
import { addressOfSettings, pointOut, pointOutNothing, readAddress, text, watchSettings } from "./settings";
import { chatsSide, optionsSide, watchSides } from "./side";
import { Stored } from "./stored";

/** Pyodide waits without end for a file of its own that cannot be loaded. */
const SLOW_START_MS = 20_000;
const THEME = "capstan-theme";

const theme = element("theme", HTMLSelectElement);
const share = element("share", HTMLButtonElement);
const otherModel = element("other-model", HTMLButtonElement);

// Events of a start that an answer waits for, or is after, would hide the text that the user should read.
const engine: Engine = new Engine(between, expectedModel);
const kept = new KeptComputations(engine);
const filled = Promise.all([findAdapter(), findModels()]).then(takeAddress);
const running: Running = new Running(engine, filled, () => kept.nameOf(conversations.shownId));
const { chat } = running;
const stored = new Stored(engine);
const fit = new Fit(engine);
const race = new Race(engine, (on) => running.hold(on));
const inside = new Inside(engine, running);
const picker = new Picker(engine, running);
const conversations = new Conversations(chat, (id) => kept.forget(id));

async function boot(): Promise<void> {
  await filled;
  void conversations.start();
  const slow = setTimeout(() => {
    chat.showStatus("Python has not started yet; if it never does, a file of capstan/pyodide/ cannot be loaded");
  }, SLOW_START_MS);
  try {
    await engine.start().finally(() => clearTimeout(slow));
    void conversations
      .ids()
      .then((ids) => kept.tidy(ids))
      .catch(() => undefined);
    if (chat.busy) return;
    const trouble = forecast();
    chat.showStatus(trouble ? `Ready; ${trouble}` : "Ready");
  } catch (error) {
    if (!chat.busy) chat.showError(error);
  }
}

/** Show an event of a start, or one between two requests. */
function between(event: CapstanEvent): void {
  const text = event.kind === "kept" ? kept.take(event) : null;
  if (chat.busy || text === "") return;
  if (text) chat.showStatus(text);
  else running.tell(event);
}

function chosen(): void {
  forecast();
  showChosen();
  fit.changed();
  offerExamples(chat);
  running.offerMore();
  for (const name of ["transcriber", "voice"])
    if (text(name)) chat.setAttribute(name, text(name));
    else chat.removeAttribute(name);
}

function takeAddress(): void {
  chat.value = readAddress() ?? chat.value;
  chosen();
}

/** Copy the address of this page with its settings and the last prompt. */
async function copyLink(): Promise<void> {
  const asked = chat.value || (chat.turns.at(-1)?.asked ?? "");
  const address = addressOfSettings(asked || null);
  try {
    await navigator.clipboard.writeText(address);
    share.textContent = "Copied";
  } catch {
    // If the clipboard is refused, the address bar has it.
    history.replaceState(null, "", address);
    share.textContent = "In the address";
  }
  setTimeout(() => (share.textContent = "Copy link"), 1500);
}

function useTheme(name: string): void {
  theme.value = name;
  document.documentElement.dataset["theme"] = name;
}

document.addEventListener("keydown", (event) => {
  const { dialog } = race;
  if (event.defaultPrevented || [dialog, inside.dialog, picker.dialog, chatsSide, optionsSide].some(({ open }) => open))
    return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    chat.submit();
  } else if (event.key === "Escape") chat.cancel();
});
// Enter in a field of the options.
element("form", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  optionsSide.hide();
  chat.submit();
});
chat.addEventListener("capstan-busy", ({ detail: on }) => {
  stored.blocked = on;
  fit.blocked = on;
});
chat.addEventListener("capstan-error", ({ detail: error }) => {
  pointOutNothing();
  pointOut(fieldOf(error));
  otherModel.hidden = !isOfModel(error);
});
otherModel.addEventListener("click", () => element("models-open", HTMLButtonElement).click());
theme.addEventListener("change", () => {
  useTheme(theme.value);
  try {
    localStorage.setItem(THEME, theme.value);
  } catch {
    // It holds until the page is left.
  }
});
share.addEventListener("click", () => void copyLink());
watchSides();
// On a phone the header has no room for them.
for (const button of document.querySelectorAll<HTMLButtonElement>("[data-for]"))
  button.addEventListener("click", () => {
    optionsSide.hide();
    element(button.dataset["for"]!, HTMLButtonElement).click();
  });
addEventListener("hashchange", takeAddress);
watchSettings(chosen);
watchPicking((files) => void chat.attach(files));
try {
  useTheme(localStorage.getItem(THEME) ?? "");
} catch {
  useTheme(""); // A browser that keeps nothing has its own colours.
}
chat.showStatus("Loading the page");
// On a touch screen the keyboard would cover the examples.
if (matchMedia("(pointer: fine)").matches) chat.focus({ preventScroll: true });
void boot();
