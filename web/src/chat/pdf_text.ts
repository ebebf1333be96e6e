// The text of a PDF file, by pdf.js; loaded for the first such file.

import { getDocument } from "pdfjs-dist/legacy/build/pdf.mjs";
import { WorkerMessageHandler } from "pdfjs-dist/legacy/build/pdf.worker.mjs";

// Without a file of its own for a worker, pdf.js reads in the page.
(globalThis as { pdfjsWorker?: unknown }).pdfjsWorker = { WorkerMessageHandler };

/** The text of all pages, each after an empty line. Throws pdf.js' errors for a file that is damaged or has a password. */
export async function pdfText(data: ArrayBuffer): Promise<string> {
  const reading = getDocument({ data, isEvalSupported: false });
  try {
    const pdf = await reading.promise;
    const pages: string[] = [];
    for (let page = 1; page <= pdf.numPages; page++) {
      const { items } = await (await pdf.getPage(page)).getTextContent();
      pages.push(items.map((item) => ("str" in item ? item.str + (item.hasEOL ? "\n" : "") : "")).join(""));
    }
    return pages.join("\n\n");
  } finally {
    await reading.destroy();
  }
}
