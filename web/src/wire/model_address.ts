/** Whether a model's address is a GGUF file's, which is a whole model; a query or fragment does not count. */
export function isGguf(address: string): boolean {
  return /\.gguf$/i.test(address.split(/[?#]/, 1)[0]!);
}

/** A model's address: a GGUF file's as it is, that of a folder with a slash at its end. */
export function modelAddress(address: string): string {
  return isGguf(address) ? address : address.replace(/\/?$/, "/");
}
