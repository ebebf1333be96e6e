/** Whether a model's address is a GGUF file's, which is a whole model. */
export function isGguf(address: string): boolean {
  return address.endsWith(".gguf");
}
