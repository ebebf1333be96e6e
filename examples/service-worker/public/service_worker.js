// Keeps what the page and Capstan fetch from the page's server, for visits without a network. The network comes first, so that
// a new version of the app is seen at once. Models are kept by Capstan itself.

const CACHE = "app";

addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("fetch", (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  const ours = origin === location.origin && !pathname.includes("/models/");
  if (ours && request.method === "GET" && !request.headers.has("Range")) event.respondWith(answer(request));
});

async function answer(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch (error) {
    const kept = await cache.match(request, { ignoreVary: true });
    if (kept) return kept;
    throw error;
  }
}
