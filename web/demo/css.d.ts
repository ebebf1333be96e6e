// esbuild loads styles with its `text` loader.
declare module "*.css" {
  const source: string;
  export default source;
}
