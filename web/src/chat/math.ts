// Formulas in answers, as MathML of KaTeX; loaded for the first formula.

import katex from "katex";

/** The MathML of a formula in TeX; what cannot be read stands in it as it is written. */
export function mathMl(tex: string, display: boolean): string {
  const made = katex.renderToString(tex, { displayMode: display, output: "mathml", throwOnError: false, maxSize: 20 });
  // The source is for copying; a sanitizer would show it.
  return made.replace(/<annotation[\s\S]*?<\/annotation>/g, "");
}
