// <capstan-chat> in Svelte's markup: `import type {} from "capstan-webgpu/jsx/svelte"`.

import type { HTMLAttributes } from "svelte/elements";
import type { CapstanChat, CapstanChatAttributes, CapstanChatHandlers } from "./chat.js";

declare module "svelte/elements" {
  interface SvelteHTMLElements {
    "capstan-chat": Omit<HTMLAttributes<CapstanChat>, keyof CapstanChatAttributes> &
      CapstanChatAttributes &
      CapstanChatHandlers;
  }
}
