// esbuild loads shaders with its `text` loader.
declare module "*.wgsl" {
  const source: string;
  export default source;
}

/** A file by a path that is only known at run time; esbuild brings all files that match. */
declare function require(path: string): string;
