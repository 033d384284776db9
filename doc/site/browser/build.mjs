// Builds the page "try it": node build.mjs FOLDER, with the exercises of exercises.py in it, from the
// root of the repository. `make site` calls it.
//
// The emulator's runtime and clang are the same for everybody. Of them the folder gets a copy, so
// that the site needs no other server. The kernels are checked once, here; the page shows what came
// out until the reader changes one.
import { createHash } from "node:crypto";
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import * as esbuild from "esbuild";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const LADDER = "ladder";
const EMULATOR = path.join(LADDER, "core/emulator");
const PACKAGES = path.join(HERE, "node_modules");
const out = path.resolve(process.argv[2]);

/** A folder's files by name, as clang takes them. */
function tree(folder) {
  const entries = fs.readdirSync(folder, { withFileTypes: true });
  const content = ({ name }) => path.join(folder, name);
  return Object.fromEntries(
    entries.map((each) => [
      each.name,
      each.isDirectory() ? tree(content(each)) : fs.readFileSync(content(each), "utf8"),
    ]),
  );
}

const digest = (...parts) => createHash("sha256").update(JSON.stringify(parts)).digest("hex");

// ---- the runtime ---------------------------------------------------------------------------------

const SAFE = [
  "-std=c++17",
  "-O2",
  "-fno-exceptions",
  "-fno-rtti",
  "-fno-strict-aliasing",
  "-fvisibility=hidden",
];
const NOT_HERE = ["fiber.cpp", "faults.cpp"]; // ladder/core/emulator/wasm has its own

/** Names that kernels may call: the emulator's, the hooks of loads and stores, and those of math.h. */
function exported({ include, runtime }) {
  const sizes = [1, 2, 4, 8, 16];
  const kinds = ["", "unaligned_", "volatile_", "unaligned_volatile_"].flatMap((kind) => [
    `${kind}read`,
    `${kind}write`,
  ]);
  const emulator = include.emulator["thread.h"].match(/\bemulator_\w+/g);
  const hooks = runtime["hooks.cpp"].match(/__tsan_(?!func|vptr)\w+(?=\()/g);
  const math = [...include["math.h"].matchAll(/^EMULATOR_[12]\((\w+)\)/gm)].map(([, name]) => name);
  const extern = [...include["math.h"].matchAll(/^extern "C" \w+ (\w+)\(/gm)].map(([, name]) => name);
  return {
    ours: ["emulator_pc", "_ZN8emulator7currentE", "emulator_copy", ...emulator, ...hooks].concat(
      [...kinds, "read_write"].flatMap((kind) => sizes.map((size) => `__tsan_${kind}${size}`)),
    ),
    theirs: ["memcpy", "memmove", "memset", ...extern, ...math.flatMap((name) => [name, `${name}f`])],
  };
}

async function buildRuntime() {
  const parts = {
    include: tree(`${EMULATOR}/include`),
    runtime: tree(`${EMULATOR}/runtime`),
    wasm: tree(`${EMULATOR}/wasm`),
  };
  const sources = Object.entries({ runtime: parts.runtime, wasm: parts.wasm }).flatMap(([folder, files]) =>
    Object.keys(files)
      .filter((name) => name.endsWith(".cpp") && !(folder === "runtime" && NOT_HERE.includes(name)))
      .map((name) => `#include "${folder}/${name}"\n`),
  );
  const { ours, theirs } = exported(parts);
  const link = [
    "-mexec-model=reactor",
    "--strip-all",
    "--export=__stack_pointer",
    "--export-table",
    "--growable-table",
    "--initial-memory=67108864", // to grow, 64 KiB at a time, takes longer than most launches
    "stack-size=1048576",
  ].map((flag) =>
    flag.startsWith("-m") ? flag : flag.startsWith("stack") ? `-Wl,-z,${flag}` : `-Wl,${flag}`,
  );
  const names = [
    ...[...new Set(ours)].map((name) => `-Wl,--export-if-defined=${name}`),
    ...[...new Set(theirs)].flatMap((name) => [`-Wl,--undefined=${name}`, `-Wl,--export-if-defined=${name}`]),
  ];
  const command = [
    "clang++",
    ...SAFE,
    "-mbulk-memory",
    "-iquote",
    "include",
    "-iquote",
    "runtime",
    "all.cpp",
    ...link,
    ...names,
    "-o",
    "runtime.wasm",
  ];
  const target = path.join(out, "runtime.wasm");
  const stamp = path.join(out, "runtime.key");
  const key = digest(parts, command);
  if (fs.existsSync(target) && fs.existsSync(stamp) && fs.readFileSync(stamp, "utf8") === key) return;
  console.log("compiling the emulator's runtime, a minute or two");
  const { runClang, runLLVM } = await import("@yowasp/clang");
  const print = (bytes) => bytes && process.stderr.write(bytes);
  await runLLVM(undefined, undefined, { fetchProgress: () => {} });
  const built = await runClang(
    command,
    { ...parts, "all.cpp": sources.join("") },
    { stdout: print, stderr: print },
  );
  const { default: binaryen } = await import("binaryen");
  const module = binaryen.readBinary(built["runtime.wasm"]);
  const { BulkMemory, BulkMemoryOpt, SignExt, MutableGlobals, NontrappingFPToInt } = binaryen.Features;
  module.setFeatures(BulkMemory | BulkMemoryOpt | SignExt | MutableGlobals | NontrappingFPToInt);
  binaryen.setPassArgument("asyncify-ignore-imports", "1");
  binaryen.setPassArgument("asyncify-export-globals", "1");
  binaryen.setOptimizeLevel(1);
  module.runPasses(["asyncify"]);
  module.optimize();
  binaryen.clearPassArguments(); // the kernels have others
  if (!module.validate()) throw new Error("Asyncify has made an invalid module");
  fs.writeFileSync(target, module.emitBinary());
  fs.writeFileSync(stamp, key);
}

// ---- what the page loads -------------------------------------------------------------------------

function copyCompiler() {
  const clang = path.join(PACKAGES, "@yowasp/clang/gen");
  fs.cpSync(clang, path.join(out, "clang"), { recursive: true });
  fs.copyFileSync(path.join(PACKAGES, "binaryen/index.js"), path.join(out, "binaryen.js"));
}

async function bundle() {
  for (const name of fs.readdirSync(out)) if (name.endsWith(".js")) fs.rmSync(path.join(out, name));
  const fromFolder = {
    name: "the compiler's files",
    setup(build) {
      build.onResolve({ filter: /^@yowasp\/clang$/ }, () => ({ path: "./clang/bundle.js", external: true }));
      build.onResolve({ filter: /^binaryen$/ }, () => ({ path: "./binaryen.js", external: true }));
    },
  };
  const common = {
    bundle: true,
    format: "esm",
    target: "es2022",
    minify: true,
    logLevel: "warning",
    absWorkingDir: HERE,
  };
  await esbuild.build({ ...common, entryPoints: ["src/page.ts"], outdir: out });
  await esbuild.build({
    ...common,
    entryPoints: ["src/worker.ts"],
    outdir: out,
    splitting: true,
    plugins: [fromFolder],
  });
  await esbuild.build({
    ...common,
    minify: false,
    entryPoints: ["check.mjs"],
    platform: "node",
    packages: "external",
    outfile: path.join(HERE, "node.mjs"),
  });
}

// ---- verdicts ------------------------------------------------------------------------------------

/** Adds to each exercise what the checker says to its kernel as it is. */
async function judge() {
  const folder = path.join(out, "exercises");
  const files = fs.readdirSync(folder).filter((name) => name.endsWith(".json") && name !== "index.json");
  const stamp = digest(
    fs.readFileSync(path.join(out, "runtime.key"), "utf8"),
    fs.readFileSync(path.join(HERE, "node.mjs"), "utf8"),
  );
  const { checkAll } = await import(pathToFileURL(path.join(HERE, "node.mjs")));
  const left = files.filter((name) => JSON.parse(fs.readFileSync(path.join(folder, name))).key !== stamp);
  await checkAll(
    out,
    left.map((name) => ({ exercise: path.join(folder, name) })),
    (verdict, index) => {
      const file = path.join(folder, left[index]);
      const exercise = JSON.parse(fs.readFileSync(file));
      fs.writeFileSync(file, JSON.stringify({ ...exercise, verdict, key: stamp }));
    },
  );
}

fs.mkdirSync(out, { recursive: true });
await buildRuntime();
fs.writeFileSync(
  path.join(out, "headers.json"),
  JSON.stringify({
    include: tree(`${EMULATOR}/include`),
    includes: Object.fromEntries(
      Object.entries(tree(`${LADDER}/include`)).filter(([name]) => name.endsWith(".cuh")),
    ),
  }),
);
await bundle();
copyCompiler();
await judge();
