// Files that esbuild imports with its `text` loader.

declare module "*.wgsl" {
  const source: string;
  export default source;
}

declare module "*.css" {
  const text: string;
  export default text;
}

/** A file by a path that is only known at run time; esbuild brings all files that match. */
declare function require(path: string): string;
