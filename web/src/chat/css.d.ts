/** A style sheet, as its text: esbuild loads it with its `text` loader. */
declare module "*.css" {
  const text: string;
  export default text;
}
