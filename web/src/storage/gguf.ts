/** Whether a model's address is a GGUF file's, which holds all that other models have files for. */
export function isGguf(address: string): boolean {
  return address.endsWith(".gguf");
}
