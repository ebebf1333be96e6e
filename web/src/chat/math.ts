// Formulas in answers, as MathML of KaTeX; loaded for the first formula.

import katex from "katex";

/** The MathML of a formula in TeX; null if KaTeX cannot read it. */
export function mathMl(tex: string, display: boolean): string | null {
  let made: string;
  try {
    made = katex.renderToString(tex, { displayMode: display, output: "mathml", maxSize: 20, strict: false });
  } catch (error) {
    if (error instanceof katex.ParseError) return null;
    throw error;
  }
  // The annotation is the source, which a sanitizer would show. A page's policy may forbid inline styles.
  return made.replace(/<annotation[\s\S]*?<\/annotation>| style="[^"]*"/g, "");
}
