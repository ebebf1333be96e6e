// esbuild loads shaders with its `text` loader.
declare module "*.wgsl" {
  const source: string;
  export default source;
}

/** Of a path that is only known at run time: esbuild resolves it among the files that there are. */
declare function require(path: string): string;
