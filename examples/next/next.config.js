/** The app is files alone, in out/. */
export default { output: "export" };
