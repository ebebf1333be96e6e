// <capstan-chat> in Vue's templates: `import type {} from "capstan-webgpu/jsx/vue"`.

import type { HTMLAttributes } from "vue";
import type { CapstanChat, CapstanChatAttributes, CapstanChatEvents } from "./chat.js";

type Handlers = {
  [Name in keyof CapstanChatEvents as `on${Capitalize<Camel<Name>>}`]?: (event: CapstanChatEvents[Name]) => void;
};
type Camel<Name extends string> = Name extends `${infer First}-${infer Rest}` ? `${First}${Capitalize<Rest>}` : Name;

declare module "vue" {
  interface GlobalComponents {
    "capstan-chat": new () => CapstanChat & { $props: HTMLAttributes & CapstanChatAttributes & Handlers };
  }
}
