// The package's files as `build.py` lays out the site: beside this module. In the npm package another module takes its
// place, which names each file so that a bundler finds it (buildtools/commands/dist.py).

import type { Assets } from "../wire/assets";

export function defaultAssets(): Assets {
  // Not in one expression: Parcel would take the folder for a file to bring along.
  const here = import.meta.url;
  return { base: new URL(".", here).href, places: {} };
}
