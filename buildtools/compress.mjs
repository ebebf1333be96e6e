// Compresses files for buildtools/compressed.py: argv[2] is a JSON list of [source, target], where target.br and target.gz
// are written. argv[3] is brotli's quality, the best one unless given.

import { readFile, writeFile } from "node:fs/promises";
import { promisify } from "node:util";
import { brotliCompress, constants, gzip } from "node:zlib";

const packBrotli = promisify(brotliCompress);
const packGzip = promisify(gzip);

for (const [source, target] of JSON.parse(process.argv[2])) {
  const bytes = await readFile(source);
  const params = {
    [constants.BROTLI_PARAM_QUALITY]: Number(process.argv[3] ?? constants.BROTLI_MAX_QUALITY),
    [constants.BROTLI_PARAM_LGWIN]: constants.BROTLI_MAX_WINDOW_BITS,
    [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length,
  };
  const packed = [packBrotli(bytes, { params }), packGzip(bytes, { level: constants.Z_BEST_COMPRESSION })];
  const [br, gz] = await Promise.all(packed);
  await writeFile(`${target}.br`, br);
  await writeFile(`${target}.gz`, gz);
}
