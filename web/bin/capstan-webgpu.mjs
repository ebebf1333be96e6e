#!/usr/bin/env node
// `npx capstan-webgpu copy DIRECTORY`: the files that a page needs, for bundlers that do not find them by themselves.

import { cp, mkdir } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const USAGE = `usage: capstan-webgpu copy DIRECTORY

Copies the folder capstan/ into DIRECTORY, which your server serves (public/, dist/, ...). Give its address to the page:
Capstan.load(model, { assetsUrl: "/capstan/" }).`;

const [command, directory, ...rest] = process.argv.slice(2);
if (command === "--help" || command === "-h") {
  console.log(USAGE);
} else if (command !== "copy" || !directory || rest.length) {
  console.error(USAGE);
  process.exitCode = 2;
} else {
  const target = join(directory, "capstan");
  try {
    await mkdir(directory, { recursive: true });
    await cp(fileURLToPath(new URL("../capstan/", import.meta.url)), target, { recursive: true });
    console.log(`copied to ${target}`);
  } catch (error) {
    console.error(`${target} cannot be written: ${error.message}`);
    process.exitCode = 1;
  }
}
