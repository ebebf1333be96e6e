// The elements of index.html by their ids, and how numbers and errors are written in them.

import { CapstanError } from "capstan-webgpu";

/** Shown for unknown values. */
export const UNKNOWN = "–";

export function element<T extends HTMLElement>(id: string, type: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`index.html has no ${type.name} #${id}`);
  return found;
}

export function say(id: string, text: string): void {
  element(id, HTMLElement).textContent = text;
}

/** A new element with a class and a text. */
export function made<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className: string,
  text = "",
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}

/** A row of a table: its head, and its other cells. */
export function tableRow(head: readonly (string | Node)[], ...cells: (string | Node)[]): HTMLTableRowElement {
  const row = document.createElement("tr");
  const th = made("th", "");
  th.scope = "row";
  th.append(...head);
  row.append(th);
  for (const cell of cells) row.insertCell().append(cell);
  return row;
}

/** A new button that sends no form. */
export function button(text: string, onClick: () => void, label = text): HTMLButtonElement {
  const element = made("button", "quiet", text);
  element.type = "button";
  if (label !== text) element.setAttribute("aria-label", label);
  element.addEventListener("click", onClick);
  return element;
}

export function told(error: unknown): string {
  const { message } = error as Error;
  return error instanceof CapstanError ? `${error.code}: ${message}` : message;
}

/** The first clause of a message, which says what is wrong; the remedy comes after it. */
export function clause(message: string): string {
  return message.split("; ", 1)[0]!;
}

export function milliseconds(value: number): string {
  return value < 1000 ? `${value.toFixed(0)} ms` : `${(value / 1000).toFixed(1)} s`;
}

export function bytes(count: number): string {
  if (count < 1e6) return `${(count / 1e3).toFixed(0)} kB`;
  return count < 1e9 ? `${(count / 1e6).toFixed(1)} MB` : `${(count / 1e9).toFixed(2)} GB`;
}
