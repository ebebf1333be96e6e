// Compresses files for buildtools/compressed.py: argv[2] is a JSON list of [source, target], where target.br and target.gz
// are written; stdout has a line with the size of each source when it is done. argv[3] is brotli's quality, the best one
// unless given.

import { readFile, rename, stat, writeFile } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { promisify } from "node:util";
import { brotliCompress, constants, gzip } from "node:zlib";

const packBrotli = promisify(brotliCompress);
const packGzip = promisify(gzip);

async function pack([source, target]) {
  const bytes = await readFile(source);
  const params = {
    [constants.BROTLI_PARAM_QUALITY]: Number(process.argv[3] ?? constants.BROTLI_MAX_QUALITY),
    [constants.BROTLI_PARAM_LGWIN]: constants.BROTLI_MAX_WINDOW_BITS,
    [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length,
  };
  await writeWhole(`${target}.br`, await packBrotli(bytes, { params }));
  await writeWhole(`${target}.gz`, await packGzip(bytes, { level: constants.Z_BEST_COMPRESSION }));
  console.log(bytes.length);
}

/** A file that is there is whole, so that an interrupted run leaves nothing that the next one would take. */
async function writeWhole(target, bytes) {
  await writeFile(`${target}.new`, bytes);
  await rename(`${target}.new`, target);
}

const sized = JSON.parse(process.argv[2]).map(async (pair) => [(await stat(pair[0])).size, pair]);
// The largest first, so that no long one is left at the end; as many at a time as there are processors, which bounds memory.
const waiting = (await Promise.all(sized)).sort(([one], [other]) => other - one).map(([, pair]) => pair);
const packer = async () => {
  for (let pair = waiting.shift(); pair; pair = waiting.shift()) await pack(pair);
};
await Promise.all(Array.from({ length: availableParallelism() }, packer));
