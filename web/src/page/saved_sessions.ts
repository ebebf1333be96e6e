// The sessions that this origin stores; `session.save` and `Capstan.restore` write and read them.

import { requireId } from "./chat_session";
import type { Request, SavedSession } from "../wire/protocol";

/** See Capstan.sessions. */
export interface SavedSessions {
  list(): Promise<SavedSession[]>;
  /** Remove one, or without arguments all. */
  delete(id?: string): Promise<void>;
}

export function savedSessions(ask: (request: Request) => Promise<unknown>): SavedSessions {
  return {
    list: async () => (await ask({ kind: "saved_sessions", action: "list", id: null })) as SavedSession[],
    // An undefined variable does not ask for all.
    async delete(...given: [id?: string]) {
      if (given.length) requireId(given[0]);
      await ask({ kind: "saved_sessions", action: "delete", id: given.length ? given[0]! : null });
    },
  };
}
