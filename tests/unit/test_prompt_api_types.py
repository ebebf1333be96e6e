"""Scripts that are written for a browser's own Prompt API are of the types of capstan-webgpu/prompt-api, too:
@types/dom-chromium-ai describes them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from buildtools import ROOT
from buildtools.bundles import ENTRIES

SCRIPT = """
type Browsers = typeof LanguageModel;
async function script(LanguageModel: Browsers): Promise<void> {
  const expectedInputs: LanguageModelExpected[] = [{ type: "text", languages: ["en"] }, { type: "image" }];
  const core: LanguageModelCreateCoreOptions = { expectedInputs, samplingMode: "creative" };
  const state: Availability = await LanguageModel.availability(core);
  if (state === "unavailable") return;
  const tool: LanguageModelTool = {
    name: "weather", description: "the weather", inputSchema: { type: "object" },
    async execute({ city }: { city: string }) { return `${city}: warm`; },
  };
  const options: LanguageModelCreateOptions = {
    expectedInputs,
    tools: [tool],
    initialPrompts: [{ role: "system", content: "Be brief." }, { role: "user", content: "hello" }],
    monitor(m: CreateMonitor) {
      m.addEventListener("downloadprogress", (event) => console.log(event.loaded, event.total));
      m.ondownloadprogress = (event) => console.log(event.lengthComputable);
    },
    signal: AbortSignal.timeout(1000),
  };
  const session: LanguageModel = await LanguageModel.create(options);
  const asked: LanguageModelPromptOptions = { responseConstraint: { type: "object" }, signal: AbortSignal.timeout(9) };
  const text: string = await session.prompt("hello", asked);
  const image: LanguageModelMessage = { role: "user", content: [{ type: "image", value: new Blob([]) }] };
  const begun: LanguageModelAssistantMessage = { role: "assistant", content: "A", prefix: true };
  const stream: ReadableStream<string> = session.promptStreaming([image, begun]);
  for await (const part of stream) console.log(part.length + text.length);
  session.addEventListener("contextoverflow", (event) => console.log(event.type));
  session.oncontextoverflow = (event) => console.log(event.type);
  await session.append([image]);
  const left: number = session.contextWindow - session.contextUsage - (await session.measureContextUsage("more"));
  const clone: LanguageModel = await session.clone({ signal: AbortSignal.timeout(9) });
  clone.destroy();
  const params: LanguageModelParams = await LanguageModel.params();
  console.log(left, params.maxTopK, session.topK, session.inputQuota);
}
"""
GIVEN = """
import { install, LanguageModel as Own } from "%s";
install({ model: "models/nano/", options: { device: "wasm" }, runOptions: { maxTokens: 8 }, inputs: ["image"] });
await script(Own);
"""
WRONG = [
    'await Own.create({ samplingMode: "wild" });',
    'await Own.create({ initialPrompts: [{ role: "tool", content: "a" }] });',
    "install({ modle: 1 });",
    'const text: number = await (await Own.create()).prompt("a");',
]


def test_a_script_for_chrome_takes_the_class_in_place_of_the_browsers(tmp_path: Path) -> None:
    wrong = "".join(f"// @ts-expect-error it is wrong\n{{ {line} }}\n" for line in WRONG)
    script = SCRIPT + GIVEN % ENTRIES["prompt-api"].with_suffix("") + wrong
    (tmp_path / "script.ts").write_text(script, encoding="utf-8")
    compiler = {
        "typeRoots": [str(ROOT / "node_modules/@types"), str(ROOT / "node_modules")],
        "types": ["@webgpu/types", "dom-chromium-ai"],
        "paths": {
            "capstan-webgpu": [str(ENTRIES["capstan"])],
            "capstan-assets": [str(ROOT / "web/src/page/assets_beside.ts")],
        },
    }
    files = ["script.ts", *map(str, (ROOT / "web/src").rglob("*.d.ts"))]
    config = {"extends": str(ROOT / "tsconfig.json"), "include": [], "files": files, "compilerOptions": compiler}
    (tmp_path / "tsconfig.json").write_text(json.dumps(config), encoding="utf-8")
    tsc = ROOT / "node_modules/.bin/tsc"
    done = subprocess.run([tsc, "-p", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
