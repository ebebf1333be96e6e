// esbuild hands a kernel to the module that imports it as text.
declare module "*.wgsl" {
  const source: string;
  export default source;
}
