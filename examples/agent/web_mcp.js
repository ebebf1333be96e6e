/** `document.modelContext` of WebMCP, or as much of it as an agent in the page needs, in browsers that lack it. */
const tools = new Map();
export const modelContext = document.modelContext ?? {
  registerTool: async (tool) => void tools.set(tool.name, tool),
  getTools: async () => [...tools.values()].map(({ execute, ...described }) => described),
  executeTool: async ({ name }, given, options) => JSON.stringify(await tools.get(name).execute(given, options)),
};
