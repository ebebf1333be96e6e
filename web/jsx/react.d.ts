// <capstan-chat> in React's JSX: `import type {} from "capstan-webgpu/jsx/react"`.

import type { DetailedHTMLProps, HTMLAttributes } from "react";
import type { CapstanChat, CapstanChatAttributes, CapstanChatHandlers } from "./chat.js";

declare module "react" {
  namespace JSX {
    interface IntrinsicElements {
      "capstan-chat": DetailedHTMLProps<HTMLAttributes<CapstanChat>, CapstanChat> &
        CapstanChatAttributes &
        CapstanChatHandlers;
    }
  }
}
