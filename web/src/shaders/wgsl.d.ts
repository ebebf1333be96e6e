// esbuild loads shaders with its `text` loader.
declare module "*.wgsl" {
  const source: string;
  export default source;
}
