// Registers the site's service worker, which keeps the site for visits without a network; build.py dist adds it to the page.

if ("serviceWorker" in navigator) {
  navigator.serviceWorker.register("./service_worker.js").catch((error: unknown) => {
    // Private windows refuse it; the page works without it.
    console.info("this site is not kept for visits without a network:", error);
  });
}
