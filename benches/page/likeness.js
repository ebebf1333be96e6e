// How near an engine's probabilities come to float32's, which chats.json has (benches/real/agreement.py). Loaded as a
// module's part or evaluated by Python, alike for every contender; `globalThis.benchLikeness` is what it leaves.
(() => {
  if (globalThis.benchLikeness) return;
  const kept = new Map();

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;

  /** A model's chats, with the rows of float32's likeliest ids and their logarithms: one for each token of a reply. */
  async function chatsOf(model) {
    if (!kept.has(model)) {
      const found = await (await fetch(`/models/${encodeURIComponent(model)}/chats.json`)).json();
      kept.set(model, {
        chats: found.chats,
        top: found.top,
        ids: new Uint32Array(bytes(found.ids)),
        logs: new Float32Array(bytes(found.log_probabilities)),
      });
    }
    return kept.get(model);
  }

  globalThis.benchLikeness = {
    /** The reply of a chat, and `compare`: call it with the logits after each token of the reply, in order. */
    async chat(model, place) {
      const { chats, top, ids, logs } = await chatsOf(model);
      const { prompt, reply } = chats[place];
      const before = chats.slice(0, place).reduce((sum, chat) => sum + chat.reply.length, 0);
      const found = { tokens: 0, same: 0, divergence: 0, largest: 0 };
      const compare = (logits) => {
        const row = (before + found.tokens++) * top;
        let best = 0;
        for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
        let sum = 0;
        for (let i = 0; i < logits.length; i++) sum += Math.exp(logits[i] - logits[best]);
        const whole = logits[best] + Math.log(sum);
        // Kullback-Leibler divergence of float32's distribution from this one; all other tokens are taken together.
        let divergence = 0;
        let theirs = 1;
        let ours = 1;
        for (let i = row; i < row + top; i++) {
          const log = logits[ids[i]] - whole;
          const p = Math.exp(logs[i]);
          divergence += p * (logs[i] - log);
          theirs -= p;
          ours -= Math.exp(log);
        }
        if (theirs > 1e-6 && ours > 0) divergence += theirs * Math.log(theirs / ours);
        found.same += best === ids[row] ? 1 : 0;
        found.divergence += divergence;
        found.largest = Math.max(found.largest, divergence);
      };
      return { prompt, reply, compare, found };
    },
  };
})();
