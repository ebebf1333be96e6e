// The result of a race as a picture, to be saved or shared.

/** The contents of a card. */
export interface RaceResult {
  model: string;
  prompt: string;
  tokens: number;
  /** The tape first; null where one could not run. */
  lanes: { name: string; perSecond: number | null }[];
  /** How much faster the tape is than the fastest other; null where there is none. */
  times: number | null;
  /** Whether all picked the same tokens. */
  agree: boolean;
  adapter: string;
  date: string;
}

const [WIDTH, HEIGHT, MARGIN] = [1200, 630, 64];
const COLOURS = {
  ground: "#12151a",
  ink: "#e6eaf0",
  soft: "#a2adbc",
  line: "#313844",
  tape: "#7db4f0",
  other: "#5b6675",
};
const FONT = "system-ui, sans-serif";

/** The headline of a result. */
export function headline({ times, lanes }: RaceResult): string {
  const own = lanes[0]?.perSecond;
  if (times !== null && times >= 1.05) return `${times.toFixed(1)} times as fast`;
  return own ? `${own.toFixed(1)} tokens a second` : "It could not run here";
}

/** All of it in words, for those who do not see the picture. */
export function inWords(result: RaceResult): string {
  const { lanes, model, adapter, date, prompt, tokens, agree } = result;
  const paces = lanes.map(
    ({ name, perSecond }) => `${name}: ${perSecond ? `${perSecond.toFixed(1)} tokens/s` : "not run"}`,
  );
  const same = agree ? "All picked the same tokens." : "Not all picked the same tokens.";
  return `${headline(result)}. ${paces.join(", ")}. ${same} ${model}, ${tokens} tokens after “${prompt}”, ${adapter}, ${date}.`;
}

export function draw(canvas: HTMLCanvasElement, result: RaceResult): void {
  canvas.width = WIDTH;
  canvas.height = HEIGHT;
  const context = canvas.getContext("2d")!;
  const write = (
    text: string,
    x: number,
    y: number,
    size: number,
    colour: string,
    weight = 400,
    most = WIDTH,
  ): void => {
    context.font = `${weight} ${size}px ${FONT}`;
    context.fillStyle = colour;
    context.fillText(text, x, y, most);
  };
  const { ground, ink, soft, line, tape, other } = COLOURS;
  context.fillStyle = ground;
  context.fillRect(0, 0, WIDTH, HEIGHT);
  write("Capstan", MARGIN, 92, 34, tape, 700);
  write("a language model in a web page", MARGIN + 176, 92, 26, soft);
  write(headline(result), MARGIN, 176, 68, ink, 700, WIDTH - 2 * MARGIN);
  const fastest = Math.max(1e-9, ...result.lanes.map(({ perSecond }) => perSecond ?? 0));
  const [begin, room] = [MARGIN + 350, WIDTH - 2 * MARGIN - 350 - 190];
  const step = Math.min(62, 300 / result.lanes.length);
  for (const [place, { name, perSecond }] of result.lanes.entries()) {
    const y = 232 + place * step;
    const own = place === 0;
    write(name, MARGIN, y + 27, 25, own ? ink : soft, own ? 600 : 400, 335);
    context.fillStyle = line;
    context.fillRect(begin, y + 4, room, 32);
    context.fillStyle = own ? tape : other;
    context.fillRect(begin, y + 4, ((perSecond ?? 0) / fastest) * room, 32);
    write(
      perSecond ? `${perSecond.toFixed(1)} tokens/s` : "not run",
      begin + room + 16,
      y + 28,
      25,
      own ? ink : soft,
      600,
      175,
    );
  }
  const { agree, tokens, prompt, model, adapter, date } = result;
  const same = agree ? "the same tokens by all" : "not the same tokens by all";
  write(`${model}, ${tokens} tokens after “${prompt}”, ${same}`, MARGIN, 552, 23, soft, 400, WIDTH - 2 * MARGIN);
  write(`${adapter}, ${date}`, MARGIN, 588, 23, soft, 400, WIDTH - 2 * MARGIN);
}

/** The picture as a file. */
export async function asFile(canvas: HTMLCanvasElement, { date }: RaceResult): Promise<File> {
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error("this browser makes no picture of a canvas");
  return new File([blob], `capstan-race-${date}.png`, { type: "image/png" });
}
