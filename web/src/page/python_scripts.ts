// Python scripts of a page, in the worker of its model or in one of the page's own.

import type { CapstanEvent, ModelFolder, Request } from "../wire/protocol";
import { reading } from "./arguments";
import type { Client } from "./client";
import { listOf, read, text } from "./kinds";

/** How a Python script ended. */
export interface PythonResult {
  status: number;
  stdout: string;
  stderr: string;
}

/** Ask the worker that `client` gives, once it is the request's turn. */
type Ask = (
  request: Request,
  onEvent: (event: CapstanEvent) => void,
  client: () => Promise<Client>,
) => Promise<unknown>;

/** The scripts run in the model's worker, or in another one if pages share it. */
export class PythonScripts {
  private own: Promise<Client> | null = null;

  constructor(
    private readonly client: Client,
    private readonly model: ModelFolder,
    private readonly ask: Ask,
  ) {}

  async run(code: string, argv: readonly string[]): Promise<PythonResult> {
    const printed = { stdout: "", stderr: "" };
    const request: Request = {
      kind: "exec",
      source: read("the code", code, text) as string,
      filename: "script.py",
      argv: reading("argv", () => ["script.py", ...(read("argv", argv, listOf("strings", text)) as string[])]),
      models: { model: this.model },
      files: {},
    };
    const heard = (event: CapstanEvent): void => {
      if (event.kind === "stdout" || event.kind === "stderr") printed[event.kind] += event.text;
    };
    const result = await this.ask(request, heard, () => this.worker());
    return { ...(result as { status: number }), ...printed };
  }

  /** End the page's own worker. */
  close(): void {
    this.own?.then((client) => client.close()).catch(() => undefined);
  }

  private async worker(): Promise<Client> {
    if (!this.own && !this.client.sharing.shared) return this.client;
    this.own ??= this.client.beside();
    try {
      return await this.own;
    } catch (error) {
      this.own = null;
      throw error;
    }
  }
}
