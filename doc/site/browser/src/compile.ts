// From the text of a kernel to a WebAssembly module that runs beside the emulator's runtime: clang
// compiles it, the linker makes it a library, and Asyncify lets its threads stop and go on.
import { type Command, type Tree, commands, runLLVM } from "@yowasp/clang";
import binaryen from "binaryen";
import { type Exercise, Wrong } from "./exercise";
import type { DeclaredKernel } from "./source";

/** What the build of the site puts beside the page. */
export interface Headers {
  include: Tree; // ladder/core/emulator/include
  includes: Record<string, string>; // ladder/include
}

export interface Library {
  module: WebAssembly.Module;
  lines: number[]; // of the kernel's file, by the number of a call
}

const STOPS = "env.emulator_*,env.__tsan_*"; // calls during which a thread may stop

/** `told`: how much of the compiler has come, from 0 to 1. */
export async function fetchCompiler(told: (share: number) => void): Promise<void> {
  await runLLVM(undefined, undefined, {
    fetchProgress: ({ doneLength, totalLength }) => told(doneLength / totalLength),
  });
}

const precompiled = new Map<string, Uint8Array>(); // cuda_runtime.h, by the flags

/** `text`: C++ as source.ts makes it of `file`. `address`: where the kernel writes which call it is in. */
export async function compile(
  text: string,
  { file, flags }: Exercise,
  kernels: DeclaredKernel[],
  macros: string[],
  { headers, address }: { headers: Headers; address: number },
): Promise<Library> {
  // A file of theirs is copied at each write, of a few bytes; their standard output is not.
  const run = async (tool: Command, command: string[], files: Tree): Promise<Uint8Array> => {
    const [output, errors]: [BlobPart[], BlobPart[]] = [[], []];
    const into = (list: BlobPart[]) => (bytes: Uint8Array | null) => void list.push((bytes ?? "") as BlobPart);
    const options = { stdout: into(output), stderr: into(errors), decodeASCII: false };
    try {
      await tool([...command, "-o", "-"], files, options);
    } catch {
      throw new Wrong(await new Blob(errors).text());
    }
    return new Uint8Array(await new Blob(output).arrayBuffer());
  };
  const clang = commands["clang++"]!;
  const { include } = headers;
  const command = ["-x", "c++-header", "include/cuda_runtime.h"];
  const header = precompiled.get(flags.join()) ?? (await run(clang, [...flags, ...command], { include }));
  precompiled.set(flags.join(), header);
  const both = [...flags, ...macros.map((macro) => `-D${macro}`), "-include-pch", "header", "-S", "kernel.cpp"];
  const compiled = new TextDecoder().decode(await run(clang, both, { include, header, "kernel.cpp": text }));
  const { assembly, lines } = numbered(compiled, file, address);
  const object = await run(clang, ["-c", "kernel.s"], { "kernel.s": assembly });
  const exports = kernels.map(({ name }) => `--export=emulator_call_${name}`);
  const options = ["--experimental-pic", "-shared", "--allow-undefined", "--strip-debug", ...exports];
  const linked = await run(runLLVM, ["wasm-ld", ...options, "kernel.o"], { "kernel.o": object });
  return { module: await WebAssembly.compile(asyncify(linked)), lines };
}

/**
 * Assembly in which each call of a function of the runtime first writes its number to memory, at
 * `address`, as on other machines a call leaves a return address; and the line of each number, of
 * the call that was inlined if its own is in another file.
 */
function numbered(text: string, file: string, address: number): { assembly: string; lines: number[] } {
  const defined = new Set([...text.matchAll(/^(\w[^:\s]*):/gm)].map(([, name]) => name));
  const lines = [0];
  let line = 0;
  const assembly = text.replace(/^\t(?:\.loc\t.*# (.*)|call\t(\S+).*)$/gm, (found, places, called) => {
    // FILE:LINE:COLUMN @[ the call of it @[ the call of that ] ]
    const own = places?.split(" @[ ").find((place: string) => place.startsWith(`${file}:`));
    if (places) line = Number(own?.slice(file.length + 1).split(":")[0] ?? 0);
    if (places || defined.has(called)) return places ? "" : found;
    lines.push(line);
    return `\ti32.const\t${address}\n\ti32.const\t${lines.length - 1}\n\ti32.store\t0\n${found}`;
  });
  return { assembly: assembly.replace(/f(32|64)\.const\t(-?)nan:0x(\w+)/g, bits), lines };
}

/** A NaN that clang writes and does not read, by its bits. */
function bits(_: string, size: string, sign: string, payload: string): string {
  const exponent = size === "32" ? 0xffn << 23n : 0x7ffn << 52n;
  const value = exponent | BigInt(`0x${payload}`) | (sign ? 1n << BigInt(Number(size) - 1) : 0n);
  return `i${size}.const\t${value}\n\tf${size}.reinterpret_i${size}`;
}

function asyncify(bytes: Uint8Array): BufferSource {
  const module = binaryen.readBinary(bytes);
  try {
    const { BulkMemory, SignExt, MutableGlobals, NontrappingFPToInt } = binaryen.Features;
    module.setFeatures(BulkMemory | SignExt | MutableGlobals | NontrappingFPToInt);
    binaryen.setPassArgument("asyncify-imports", STOPS);
    binaryen.setPassArgument("asyncify-import-globals", "1");
    module.runPasses(["asyncify"]);
    return module.emitBinary() as BufferSource;
  } finally {
    module.dispose();
    binaryen.clearPassArguments();
  }
}
