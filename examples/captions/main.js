import { Capstan } from "capstan-webgpu";

const [listen, stop] = document.querySelectorAll("button");
const status = document.querySelector("[role=status]");
const [said, partial] = document.querySelectorAll("span, i");
const model = new URLSearchParams(location.search).get("model") ?? "models/whisper/";
let loading = null;

listen.onclick = async () => {
  listen.disabled = true;
  try {
    const microphone = await Capstan.microphone();
    stop.onclick = () => microphone.close();
    stop.disabled = false;
    loading ??= Capstan.loadTranscriber(model, { onProgress: (progress) => (status.textContent = progress.status) });
    const asr = await loading;
    status.textContent = "Speak.";
    for await (const { text, final } of asr.listen(microphone)) {
      partial.textContent = final ? "" : text;
      if (final) said.append(text, " ");
    }
    status.textContent = "Stopped.";
  } catch (error) {
    status.textContent = `${error.code}: ${error.message}`;
  }
  listen.disabled = false;
  stop.disabled = true;
};
