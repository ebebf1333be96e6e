// The demo page: a conversation with a model, its options, and what this machine does for it.

import { findAdapter, forecast } from "./diagnostics";
import { element, milliseconds, say } from "./elements";
import { Engine } from "./engine";
import { showFailure } from "./failure";
import { Fit } from "./fit";
import { Inside } from "./inside";
import { expectedModel, findModels, showChosen, watchPicking } from "./models";
import { Race } from "./race";
import { Running } from "./running";
import { addressOfSettings, readAddress, watchSettings } from "./settings";
import { Stored } from "./stored";

/** Pyodide waits without end for a file of its own that cannot be loaded. */
const SLOW_START_MS = 20_000;
const THEME = "capstan-theme";

const prompt = element("prompt", HTMLTextAreaElement);
const theme = element("theme", HTMLSelectElement);
const share = element("share", HTMLButtonElement);

const engine: Engine = new Engine((event) => running.show(event), expectedModel);
const running: Running = new Running(engine, (on) => {
  stored.blocked = on;
  fit.blocked = on;
});
const stored: Stored = new Stored(engine, (error) => {
  if (showFailure(error)) engine.forget();
});

const fit: Fit = new Fit(engine, (error) => {
  if (showFailure(error)) engine.forget();
});

const race = new Race(engine, (on) => running.hold(on));
const inside = new Inside(engine, running);

async function boot(): Promise<void> {
  await Promise.all([findAdapter(), findModels()]);
  readAddress();
  chosen();
  const slow = setTimeout(() => {
    say("status", "Python has not started yet; if it never does, a file of capstan/pyodide/ cannot be loaded");
  }, SLOW_START_MS);
  try {
    const client = await engine.start().finally(() => clearTimeout(slow));
    if (!running.busy) say("status", `Ready: Python started in ${milliseconds(client.readiness.ready_ms)}`);
  } catch (error) {
    if (!running.busy) showFailure(error);
  }
}

function chosen(): void {
  forecast();
  showChosen();
  fit.changed();
  running.offer();
}

/** Copy the address of this page with its settings and the last prompt. */
async function copyLink(): Promise<void> {
  const asked = prompt.value || (running.transcript.turns.at(-1)?.asked ?? "");
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

/** Whether Enter sends: on a touch keyboard it breaks the line, and the button sends. */
function enterSends(event: KeyboardEvent): boolean {
  if (event.ctrlKey || event.metaKey) return true;
  return event.target === prompt && !event.shiftKey && !event.isComposing && matchMedia("(pointer: fine)").matches;
}

document.addEventListener("keydown", (event) => {
  if (raceDialog.open || inside.dialog.open) return;
  if (event.key === "Enter" && enterSends(event)) {
    event.preventDefault();
    if (!running.busy) element("form", HTMLFormElement).requestSubmit();
  } else if (event.key === "Escape") running.stop();
});
theme.addEventListener("change", () => {
  useTheme(theme.value);
  try {
    localStorage.setItem(THEME, theme.value);
  } catch {
    // It holds until the page is left.
  }
});
const raceDialog = element("race", HTMLDialogElement);
element("race-open", HTMLButtonElement).addEventListener("click", () => raceDialog.showModal());
raceDialog.addEventListener("close", () => race.stop());
share.addEventListener("click", () => void copyLink());
for (const link of document.querySelectorAll<HTMLAnchorElement>('a[href="#options"]')) {
  link.addEventListener("click", (event) => {
    // The part of the address behind # holds the settings.
    event.preventDefault();
    const options = element("options", HTMLElement);
    options.scrollIntoView();
    options.focus({ preventScroll: true });
  });
}
addEventListener("hashchange", () => {
  readAddress();
  chosen();
});
watchSettings(chosen);
watchPicking();
try {
  useTheme(localStorage.getItem(THEME) ?? "");
} catch {
  useTheme(""); // A browser that keeps nothing has its own colours.
}
void boot();
