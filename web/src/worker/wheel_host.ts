// The object that the wheel registers as `_capstan_host` in a Pyodide that another program started, in a page or in a
// worker. That page sets the place of onnxruntime-web's files by capstan.configure.

import { makeHost } from "./host";

export const host = makeHost({ base: null, places: {} });
