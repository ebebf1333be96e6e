// The form: what it asks for, and the same in the page's address.

import { CapstanError, type GenerateRequest, type ModelFacts } from "capstan-webgpu";
import { element } from "./elements";
import { optionsSide } from "./side";

/** A field whose value is none; its message begins with the name of the option. */
export class FormError extends CapstanError {
  constructor(
    readonly field: string,
    message: string,
  ) {
    super({ type: "OptionError", message });
  }
}

/** The options of a run, besides the model and the prompt. */
export type Settings = Omit<GenerateRequest, "kind" | "model" | "prompt" | "prompt_ids" | "dtype"> & {
  dtype: string | null;
  /** The form always chooses one of each. */
  device: NonNullable<GenerateRequest["device"]>;
  capture: NonNullable<GenerateRequest["capture"]>;
  run_ahead: number | null;
};

/** A link must give away no secret and bring no code along. */
const LEFT_OUT = ["token", "processor"];
const SCHEMA_EXAMPLE = {
  type: "object",
  properties: {
    name: { type: "string" },
    age: { type: "integer" },
    likes: { type: "array", items: { type: "string" } },
  },
  required: ["name", "age", "likes"],
};

const PROCESSOR_EXAMPLE = `import capstan

@capstan.shortlist_processor
def rather_short(tokens, best):
    """The first of the best tokens is a little less sure."""
    token, logit = best[0]
    return {token: logit - 1.5}
`;

const form = element("form", HTMLFormElement);
type Field = HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement;
const numbersIn = (part: string): HTMLInputElement[] => [...form.querySelectorAll<HTMLInputElement>(`${part} input`)];
/** The form's search options, of which some have a value that is usual for every model. */
const SAMPLED = numbersIn(".sampling");
const SEARCH = [...SAMPLED, ...numbersIn(".repetition")].map((input) => ({ input, usual: input.placeholder }));

function field(name: string): Field {
  return form.elements.namedItem(name) as Field;
}

/** A field's text without the spaces around it. */
export function text(name: string): string {
  return field(name).value.trim();
}

/** A number field's value, null when empty. Python checks the number's range; here it must only be a number. */
function number(name: string): number | null {
  const input = field(name) as HTMLInputElement;
  if (input.validity.badInput) throw new FormError(name, `${name} is not a number; correct it or leave it empty`);
  if (input.value === "") return null;
  const value = Number(input.value);
  if (input.step === "1" && !Number.isSafeInteger(value)) {
    throw new FormError(name, `${name} is ${input.value}; it must be a whole number`);
  }
  return value;
}

/** How a model's tokens are picked where nobody says, as far as is known. */
export type Picking = Partial<ModelFacts["search"]>;
/** That of the chosen model; null as long as nothing is known. */
let usually: Picking | null = null;

/** Whether tokens are sampled as the form says; null where it leaves that to the model. */
function asksToSample(): boolean | null {
  const chosen = text("search");
  return chosen ? chosen === "sample" : SAMPLED.some(({ name, value }) => name !== "random_seed" && value) || null;
}

/** Whether tokens are sampled: as the form says, else as is usual for the model. */
function samples(): boolean {
  return asksToSample() ?? usually?.do_sample !== false;
}

/** Show how the chosen model's tokens are picked where the form does not say. */
export function showPicking(picking: Picking | null): void {
  usually = picking;
  const usual = picking ? (picking.do_sample ? "sampled" : "the most probable") : "";
  (field("search") as HTMLSelectElement).options[0]!.text = usual
    ? `usual for the model: ${usual}`
    : "usual for the model";
  for (const { input, usual } of SEARCH) input.placeholder = String(picking?.[input.name as keyof Picking] ?? usual);
  for (const part of form.querySelectorAll<HTMLElement>(".sampling")) part.hidden = !samples();
}

export function readSettings(): Settings {
  const asked = asksToSample();
  const search: GenerateRequest["search"] = asked === null ? {} : { do_sample: asked };
  for (const { input } of SEARCH) {
    const value = samples() || !SAMPLED.includes(input) ? number(input.name) : null;
    if (value !== null) search[input.name] = value;
  }
  const stop = field("stop_strings").value.replaceAll("\\n", "\n");
  if (stop) search["stop_strings"] = [stop];
  const schema = text("schema");
  return {
    dtype: text("dtype") || null,
    device: text("device") as Settings["device"],
    capture: text("capture") as Settings["capture"],
    run_ahead: number("run_ahead"),
    max_new_tokens: number("max_new_tokens"),
    search,
    guidance: schema ? { type: "json_schema", data: schema } : null,
  };
}

/** The system message; empty for none. */
export function systemText(): string {
  return text("system");
}

export function useSystem(content: string): void {
  if (content === text("system")) return;
  field("system").value = content;
  field("system").dispatchEvent(new Event("change", { bubbles: true }));
}

/** Point a field out, and open the section that contains it. */
export function pointOut(name: string): void {
  const input = name && form.elements.namedItem(name);
  if (!(input instanceof HTMLElement)) return;
  for (let around = input.closest("details"); around; around = around.parentElement!.closest("details"))
    around.open = true;
  input.setAttribute("aria-invalid", "true");
  optionsSide.show();
  input.focus();
}

export function pointOutNothing(): void {
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

// In the address.

function fields(): Field[] {
  return [...form.elements].filter((found): found is Field => "name" in found && Boolean((found as Field).name));
}

/** A field's value before any change. */
function usual(field: Field): string {
  if (!(field instanceof HTMLSelectElement)) return field.defaultValue;
  return ([...field.options].find((option) => option.defaultSelected) ?? field.options[0])?.value ?? "";
}

/** In an address a model of this site goes by its name. */
function shown(field: Field): string {
  return field.name === "model"
    ? ((field as HTMLSelectElement).selectedOptions[0]?.dataset["name"] ?? "")
    : field.value;
}

/** The page's address with every setting that is not the usual one, after a # so that no server sees it. */
export function addressOfSettings(withPrompt: string | null): string {
  const given = new URLSearchParams();
  for (const field of fields()) {
    if (LEFT_OUT.includes(field.name) || field.value === usual(field)) continue;
    const value = shown(field);
    if (value) given.set(field.name, value);
  }
  if (withPrompt) given.set("prompt", withPrompt);
  const address = new URL(location.href);
  address.hash = given.toString();
  return address.href;
}

/** Take the settings of the page's address over, and return its prompt; a name that is none of a field is left alone. */
export function readAddress(): string | null {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const field of fields()) {
    const value = given.get(field.name);
    if (value === null || LEFT_OUT.includes(field.name)) continue;
    if (field instanceof HTMLSelectElement) {
      const option = [...field.options].find((found) => found.value === value || found.dataset["name"] === value);
      if (option) option.selected = true;
    } else field.value = value;
    for (let around = field.closest("details"); around; around = around.parentElement!.closest("details"))
      around.open = true;
  }
  return given.get("prompt");
}

/** The Python of the logits processor and the name of its function; null for none. */
export function readProcessor(): { source: string; name: string } | null {
  const source = field("processor").value;
  if (!source.trim()) return null;
  const found = [...source.matchAll(/^@capstan\.(?:logits|shortlist)_processor\b.*\n(?:@.*\n)*\s*def\s+(\w+)/gm)].at(
    -1,
  );
  if (!found) {
    const remedy = "put a function under @capstan.logits_processor or @capstan.shortlist_processor, or empty it";
    throw new FormError("processor", `the processor's code defines none; ${remedy}`);
  }
  return { source, name: found[1]! };
}

/** Keep the address in step with the form, and do what a field changes at once. */
export function watchSettings(onChange: () => void): void {
  const changed = (): void => {
    showPicking(usually);
    history.replaceState(null, "", addressOfSettings(null));
    onChange();
  };
  form.addEventListener("change", changed);
  element("schema-example", HTMLButtonElement).addEventListener("click", () => {
    field("schema").value = JSON.stringify(SCHEMA_EXAMPLE, null, 1);
    changed();
  });
  const presets = element("presets", HTMLSelectElement);
  presets.addEventListener("change", () => {
    useSystem(presets.value);
    presets.value = "";
  });
  element("processor-example", HTMLButtonElement).addEventListener("click", () => {
    field("processor").value = PROCESSOR_EXAMPLE;
    field("processor").dispatchEvent(new Event("input", { bubbles: true }));
    changed();
  });
  showPicking(usually);
}
