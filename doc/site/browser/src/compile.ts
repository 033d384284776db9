// From the text of a kernel to a WebAssembly module that runs beside the emulator's runtime: clang
// compiles it, the linker makes it a library, and Asyncify lets its threads stop and go on.
import { type Command, type Tree, commands, runLLVM } from "@yowasp/clang";
import binaryen from "binaryen";
import { sayWhere } from "./wasm";

/** What the build of the site puts beside the page. */
export interface Headers {
  include: Tree; // ladder/core/emulator/include
}

export interface Library {
  linked: Uint8Array; // with the debug information
  module: Uint8Array; // to be run
}

export class CompileError extends Error {}

// As toolchain.py compiles for counting with clang.
const FLAGS = [
  "-std=c++17",
  "-fPIC",
  "-O0",
  "-fvisibility=hidden",
  "-fno-strict-aliasing",
  "-gdwarf-4",
  "-g1",
  "-nostdinc",
  "-fno-exceptions",
  "-fno-rtti",
  "-Werror=vla",
  "-ffp-contract=off",
  "-DEMULATOR_COUNT",
  "-Xclang",
  "-fsanitize=thread",
  "-mllvm",
  "-tsan-instrument-func-entry-exit=0",
  "-ftrivial-auto-var-init=pattern",
  "-Wno-unknown-pragmas",
  "-Iinclude",
  "-include",
  "cuda_runtime.h",
];
const STOPS = "env.emulator_*,env.__tsan_*"; // calls during which a thread may stop

/** `told`: how much of the compiler has come, from 0 to 1. */
export async function fetchCompiler(told: (share: number) => void): Promise<void> {
  await runLLVM(undefined, undefined, {
    fetchProgress: ({ doneLength, totalLength }) => told(doneLength / totalLength),
  });
}

/** `text`: C++ as source.ts makes it. `address`: where the kernel writes where it is. */
export async function compile(
  text: string,
  kernels: string[],
  macros: string[],
  headers: Headers,
  address: number,
): Promise<Library> {
  const printed: string[] = [];
  const print = (bytes: Uint8Array | null) => bytes && printed.push(new TextDecoder().decode(bytes));
  const options = { stdout: print, stderr: print };
  const run = async (tool: Command, command: string[], files: Tree): Promise<Tree> => {
    try {
      return (await tool(command, files, options))!;
    } catch {
      throw new CompileError(printed.join(""));
    }
  };
  const files = { include: headers.include, "kernel.cpp": text };
  const defines = macros.map((macro) => `-D${macro}`);
  const compiler = [...FLAGS, ...defines, "-c", "kernel.cpp", "-o", "kernel.o"];
  const compiled = await run(commands["clang++"], compiler, files);
  const exports = kernels.map((kernel) => `--export=emulator_call_${kernel}`);
  const linker = [
    "wasm-ld",
    "--experimental-pic",
    "-shared",
    "--allow-undefined",
    ...exports,
    "kernel.o",
    "-o",
    "kernel.wasm",
  ];
  const linked = await run(runLLVM, linker, { "kernel.o": compiled["kernel.o"]! });
  const bytes = linked["kernel.wasm"] as Uint8Array;
  return { linked: bytes, module: asyncify(sayWhere(bytes, address)) };
}

function asyncify(bytes: Uint8Array): Uint8Array {
  const module = binaryen.readBinary(bytes);
  try {
    const { BulkMemory, SignExt, MutableGlobals, NontrappingFPToInt } = binaryen.Features;
    module.setFeatures(BulkMemory | SignExt | MutableGlobals | NontrappingFPToInt);
    binaryen.setPassArgument("asyncify-imports", STOPS);
    binaryen.setPassArgument("asyncify-import-globals", "1");
    module.runPasses(["asyncify"]);
    return module.emitBinary();
  } finally {
    module.dispose();
    binaryen.clearPassArguments();
  }
}

/** The frames of each place in the code, innermost first, as [file, line]. */
export async function locate(linked: Uint8Array, places: number[]): Promise<[string, number][][]> {
  const printed: string[] = [];
  const print = (bytes: Uint8Array | null) => bytes && printed.push(new TextDecoder().decode(bytes));
  const addresses = places.map((place) => `0x${(place - 1).toString(16)}`); // within the call
  const command = ["symbolizer", "-e", "kernel.wasm", "--inlining", "--output-style=JSON", ...addresses];
  if (!places.length) return [];
  await runLLVM(command, { "kernel.wasm": linked }, { stdout: print, stderr: print });
  return JSON.parse(printed.join("")).map(({ Symbol: frames = [] }: any) =>
    frames.map((frame: any) => [frame.FileName, frame.Line]),
  );
}
