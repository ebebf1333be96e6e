// What the wheel registers as `_capstan_host` in a Pyodide that somebody else started, in a page or in a worker. Where
// onnxruntime-web's files are is up to that page: capstan.configure tells.

import { makeHost } from "./host";

export const host = makeHost({ base: null, places: {} });
