import type { Headers } from "./compile";
import type { Emulator } from "./judge";

/** The emulator from its two files: the runtime, and the headers of the emulator and of the rungs. */
export async function emulatorOf(
  bytes: BufferSource,
  headers: Headers & { includes: Record<string, string> },
): Promise<Emulator> {
  const runtime = await WebAssembly.compile(bytes);
  const nothing = Object.fromEntries(WebAssembly.Module.imports(runtime).map(({ name }) => [name, () => 0]));
  const { exports } = new WebAssembly.Instance(runtime, { wasi_snapshot_preview1: nothing });
  const address = (exports.emulator_pc as WebAssembly.Global).value;
  return { runtime, address, headers, includes: headers.includes };
}
