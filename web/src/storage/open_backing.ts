// This browser's place for stored weights.

import type { Backing } from "./backing";
import { CacheBacking } from "./cache";
import { OpfsBacking } from "./opfs";

/** A folder in the private file system, else a cache of that name in the Cache API, else nothing. */
export async function openBacking(folder: string): Promise<Backing | null> {
  return (await OpfsBacking.find(folder)) ?? (await CacheBacking.find(folder));
}
