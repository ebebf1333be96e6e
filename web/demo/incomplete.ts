// Tells that a script of the page could not be loaded, which that script cannot. Errors of elements do not bubble.

addEventListener(
  "error",
  ({ target }) => {
    if (!(target instanceof HTMLScriptElement)) return;
    document.getElementById("chat")!.textContent =
      "The page is incomplete: demo.js or capstan/capstan.js could not be loaded. Assemble the site again.";
  },
  true,
);
