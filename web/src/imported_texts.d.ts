// Files that esbuild imports with its loaders of texts and bytes.

declare module "*.wgsl" {
  const source: string;
  export default source;
}

declare module "*.css" {
  const text: string;
  export default text;
}

declare module "*.wasm" {
  const bytes: Uint8Array<ArrayBuffer>;
  export default bytes;
}

/** A file by a path that is only known at run time; esbuild brings all files that match. */
declare function require(path: string): string;

declare module "pdfjs-dist/legacy/build/pdf.worker.mjs" {
  export const WorkerMessageHandler: unknown;
}
