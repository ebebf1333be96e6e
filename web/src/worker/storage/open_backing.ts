// This browser's place for stored weights.

import type { Backing, Refused } from "./backing";
import { CacheBacking } from "./cache";
import { OpfsBacking } from "./opfs";

/**
 * A folder in the private file system, else a cache of that name in the Cache API, else nothing. `refused` hears why the
 * browser refuses the first.
 */
export async function openBacking(folder: string, refused: Refused = () => {}): Promise<Backing | null> {
  return (await OpfsBacking.find(folder, refused)) ?? (await CacheBacking.find(folder));
}
