// Compiles and runs kernels beside the page, which may end this worker at any time.
import type { Exercise } from "./exercise";
import type { Verdict } from "./judge";

/** `downloaded`: the share of the compiler that is here. */
export type Reply = { told: string } | { downloaded: number } | { verdict: Verdict } | { error: string };

const say = (reply: Reply) => postMessage(reply);
const here = (name: string) => fetch(new URL(name, import.meta.url));

async function load() {
  const [{ check, emulatorOf }, { fetchCompiler }, runtime, headers] = await Promise.all([
    import("./judge"),
    import("./compile"),
    here("runtime.wasm").then((file) => file.arrayBuffer()),
    here("headers.json").then((file) => file.json()),
  ]);
  await fetchCompiler((downloaded) => say({ downloaded }));
  return { emulator: await emulatorOf(runtime, headers), check };
}

let ready: ReturnType<typeof load> | undefined;

addEventListener("message", async ({ data }: MessageEvent<{ exercise: Exercise; source: string }>) => {
  try {
    ready ??= load();
    const { emulator, check } = await ready;
    say({ verdict: await check(data.exercise, data.source, emulator, (told) => say({ told })) });
  } catch (error) {
    say({ error: (error as Error).message });
  }
});
