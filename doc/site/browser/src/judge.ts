// Checks a kernel as `python -m ladder check` does: at several shapes, with the threads in several
// orders, against the float64 reference, whose results and tolerances the build of the site wrote.
import { CompileError, type Headers, type Library, compile, locate } from "./compile";
import { HeaderError, plan, readHeader } from "./header";
import { type Argument, COUNTS, Machine, type RawResult } from "./machine";
import { type Access, type Buffer, type Problem, type Site, Words, ownLine } from "./report";
import { prepare } from "./source";

export interface Array_ {
  name: string;
  type: "float32" | "int32" | "uint32";
  data?: string; // base64, little-endian; undefined: not written before the call
  elements: number;
  start: number; // element of an aligned address at which it begins
}
export interface Expected {
  name: string;
  value: string; // base64 of float64, or of the array's own type if that is whole
  tolerance?: string; // base64 of float32
  others: string[]; // whole numbers that are as right
}
export interface Case {
  label: string;
  dims: Record<string, number>;
  arrays: Array_[]; // of the contract's arguments, without optional ones that are left out
  scalars: Record<string, { type: "int" | "float"; value: number }>;
  expected: Expected[];
}
export interface Exercise {
  name: string; // of the op
  file: string;
  source: string;
  device: Record<string, number | string>; // what a header may ask about
  outputs: string[];
  optional: string[];
  cases: Case[];
  limits: { case: number; at_most: Record<string, number>; at_least: Record<string, number> };
}
export interface Verdict {
  status: "passed" | "failed" | "refused";
  message: string;
  problems: Problem[];
  notes: string[]; // on limits
  sites: Site[]; // of the case whose accesses are shown
  accesses: Access[];
  label: string; // of that case
}
export interface Emulator {
  runtime: WebAssembly.Module;
  address: number; // of emulator_pc
  headers: Headers;
  includes: Record<string, string>; // ladder/include
}

const SECONDS = 10; // that one launch may take
const ORDERS = [
  { seed: 0, early: false }, // in order: what it names comes first
  { seed: 4, early: true },
];
const LESSONS: Record<string, string> = {
  sectors: "Coalesce: neighbouring lanes take neighbouring elements; load each only once.",
  "requests per warp": "Share the work: all blocks and warps take their part.",
  wavefronts: "Whole warps work, and few of them in each step; registers take none.",
  atomics: "Reduce first: add up in registers or shared memory, and do few atomics at the end.",
};

class Wrong extends Error {
  constructor(
    message: string,
    readonly problems: Problem[] = [],
  ) {
    super(message);
  }
}

interface Seen {
  sites: Site[];
  accesses: Access[];
  results: Uint8Array[];
}

export async function check(exercise: Exercise, source: string, emulator: Emulator, tell: (text: string) => void = () => {}): Promise<Verdict> {
  const verdict = (status: Verdict["status"], message: string, more: Partial<Verdict> = {}): Verdict => ({
    status, message, problems: [], notes: [], sites: [], accesses: [], label: "", ...more,
  });
  const libraries = new Map<string, Library>();
  const deterministic = !(readHeader(source).Deterministic?.[0] ?? "yes").startsWith("no");
  let shown: Partial<Verdict> = {};
  let ran = 0;
  let refusal = "";
  try {
    const { text, kernels } = prepare(exercise.file, source, emulator.includes);
    for (const [index, one] of exercise.cases.entries()) {
      const planned = plan(source, { ...one.dims, ...exercise.device });
      if (planned.refusal) {
        refusal = planned.refusal;
        continue;
      }
      const key = planned.macros.join();
      if (!libraries.has(key)) {
        tell(`compiling${planned.macros.length ? ` with ${planned.macros.join(", ")}` : ""}`);
        const macros = ["REAL_FLOAT32=1", "WARP_SIZE=32", ...planned.macros];
        const names = kernels.map(({ name }) => name);
        libraries.set(key, await compile(text, names, macros, emulator.headers, emulator.address));
      }
      tell(`running: ${one.label}`);
      const library = libraries.get(key)!;
      const runs: Seen[] = [];
      for (const order of ORDERS) {
        const trace = exercise.limits.case === index && order === ORDERS[0] ? 1 << 20 : 1;
        runs.push(await run(exercise, one, source, planned, kernels, library, emulator, { ...order, trace }));
        if (deterministic) sameBits(exercise, one, runs);
      }
      ran++;
      if (index === exercise.limits.case)
        shown = { sites: merged(runs[0]!.sites), accesses: runs[0]!.accesses, label: one.label };
    }
  } catch (error) {
    if (error instanceof Wrong) return verdict("failed", error.message, { ...shown, problems: error.problems });
    if (error instanceof CompileError || error instanceof HeaderError) return verdict("failed", error.message);
    throw error;
  }
  if (!ran) return verdict("refused", `it refuses every shape: ${refusal}`);
  const { broken, kept } = judgeLimits(exercise, shown.sites ?? [], shown.accesses ?? []);
  if (broken.length) return verdict("failed", broken[0]!, { ...shown, notes: [...broken.slice(1), ...kept] });
  return verdict("passed", `right at ${ran} shapes and kinds of input`, { ...shown, notes: kept });
}

async function run(
  exercise: Exercise, one: Case, source: string, planned: ReturnType<typeof plan>,
  kernels: ReturnType<typeof prepare>["kernels"], library: Library, emulator: Emulator,
  order: { seed: number; early: boolean; trace: number },
): Promise<Seen> {
  const module = await WebAssembly.compile(library.module as BufferSource);
  const machine = new Machine(emulator.runtime, module, library.linked);
  const named = new Map<string, Argument>();
  const place = (name: string, elements: number, start = 0, data?: Uint8Array) => {
    const address = machine.allocate(4 * (start + elements)) + 4 * start;
    const bytes = new Uint8Array(machine.memory.buffer, address, 4 * elements);
    if (data) bytes.set(data);
    else bytes.fill(0xff); // NaN
    named.set(name, { address, bytes: 4 * elements, elementBytes: 4 });
  };
  const given = new Map(one.arrays.map((array) => [array.name, array.data === undefined ? undefined : decode(array.data)]));
  for (const { name, elements, start } of one.arrays) place(name, elements, start, given.get(name));
  for (const { name, elements } of planned.scratch) place(name, elements);
  for (const [name, value] of Object.entries(one.dims)) named.set(name, { value, type: "int" });
  for (const [name, scalar] of Object.entries(one.scalars)) named.set(name, scalar);
  for (const name of exercise.optional) if (!named.has(name)) named.set(name, { value: 0, type: "int" });

  const found: Seen = { sites: [], accesses: [], results: [] };
  for (const geometry of planned.launches) {
    const kernel = kernels.find(({ name }) => name === geometry.kernel);
    if (!kernel) throw new HeaderError(`the header launches ${geometry.kernel}, and the file defines no such kernel`);
    const taken = kernel.parameters.map((name) => {
      const argument = named.get(name);
      if (!argument) throw new HeaderError(`${exercise.name} has no argument ${name}; there are ${[...named.keys()].join(", ")}`);
      return argument;
    });
    const buffers: Buffer[] = kernel.parameters.flatMap((name) => {
      const argument = named.get(name)!;
      return "address" in argument ? [{ name, ...argument }] : [];
    });
    let raw: RawResult;
    try {
      raw = machine.launch(geometry, taken, { warp: 32, seconds: SECONDS, ...order });
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError)) throw error;
      const [frames] = await locate(library.linked, [machine.where()]);
      const line = ownLine(frames ?? [], exercise.file);
      const message = `line ${line}, or soon after it: ${error.message}`;
      throw new Wrong(message, [{ kind: "crash", line, message }]);
    }
    const places = [...new Set([...raw.problems.flatMap(({ place, other }) => [place.pc, other.pc]), ...raw.sites.map(({ pc }) => pc)])].filter(Boolean);
    const frames = await locate(library.linked, places);
    const lines = new Map(places.map((pc, i) => [pc, ownLine(frames[i] ?? [], exercise.file)]));
    const words = new Words(source, kernel.parameters, buffers, lines, SECONDS);
    const problems = words.problems(raw);
    if (problems.length) {
      problems.sort((a, b) => Number(a.kind === "uninitialised shared memory") - Number(b.kind === "uninitialised shared memory"));
      throw new Wrong(`${problems[0]!.message} [${one.label}]`, problems);
    }
    const sites = words.sites(raw);
    found.sites.push(...sites);
    found.accesses.push(...words.accesses(raw, sites));
  }

  const contents = (name: string) => {
    const { address, bytes } = named.get(name) as { address: number; bytes: number };
    return new Uint8Array(machine.memory.buffer, address, bytes).slice();
  };
  for (const { name } of one.arrays)
    if (!exercise.outputs.includes(name) && !equal(contents(name), given.get(name)!))
      throw new Wrong(`it changes its input ${name} [${one.label}]`);
  for (const expected of one.expected) {
    const { type } = one.arrays.find(({ name }) => name === expected.name)!;
    const result = contents(expected.name);
    const wrong = compare(result, type, expected);
    if (wrong) throw new Wrong(`${wrong} [${one.label}]`);
    found.results.push(result);
  }
  return found;
}

/** What is wrong with an output, as Expected.verify has it; undefined if nothing is. */
export function compare(result: Uint8Array, type: Array_["type"], expected: Expected): string | undefined {
  const whole = type !== "float32";
  const got = type === "float32" ? new Float32Array(result.buffer) : type === "int32" ? new Int32Array(result.buffer) : new Uint32Array(result.buffer);
  const typed = (text: string) => {
    const { buffer } = decode(text);
    return !whole ? new Float64Array(buffer) : type === "int32" ? new Int32Array(buffer) : new Uint32Array(buffer);
  };
  const value = typed(expected.value);
  const tolerance = expected.tolerance === undefined ? undefined : new Float32Array(decode(expected.tolerance).buffer);
  const others = expected.others.map(typed);
  let first = -1;
  let count = 0;
  for (let i = 0; i < got.length; i++) {
    const [x, y] = [got[i]!, value[i]!];
    const right = whole
      ? x === y || others.some((other) => other[i] === x)
      : !Number.isFinite(y) ? !Number.isFinite(x) : x === Math.fround(y) || Math.abs(x - y) <= tolerance![i]!;
    if (right) continue;
    if (!count++) first = i;
  }
  if (!count) return undefined;
  const within = tolerance ? ` ± ${tolerance[first]!.toPrecision(2)}` : "";
  const shown = (x: number) => (whole ? String(x) : String(Number(x.toPrecision(7))));
  return (
    `${expected.name}[${first}] is ${shown(got[first]!)}, expected ${shown(value[first]!)}${within}; ` +
    `${count} of ${got.length} elements are wrong`
  );
}

function sameBits(exercise: Exercise, one: Case, runs: Seen[]): void {
  one.expected.forEach(({ name }, i) => {
    if (!equal(runs[0]!.results[i]!, runs.at(-1)!.results[i]!))
      throw new Wrong(
        `two runs on the same input differ in ${name} [${one.label}]; a kernel that may do so says ` +
          "'Deterministic: no' in its header",
      );
  });
}

/** One entry for each line, buffer and kind, as Record.lines has it. */
function merged(sites: Site[]): Site[] {
  const found = new Map<string, Site>();
  for (const site of sites) {
    if (!site.requests) continue;
    const key = [site.line, site.buffer, site.space, site.kind, site.bytes].join();
    const known = found.get(key);
    if (!known) found.set(key, { ...site });
    else
      for (const count of COUNTS) known[count] += site[count];
  }
  return [...found.values()].sort((a, b) => a.line - b.line);
}

/** The measures of ladder/core/show/limits.py that the puzzles use. */
function judgeLimits({ limits, cases }: Exercise, sites: Site[], accesses: Access[]): { broken: string[]; kept: string[] } {
  const of = (array: string) => sites.filter(({ buffer }) => !array || buffer === array);
  const sum = (array: string, count: (site: Site) => number) => of(array).reduce((all, site) => all + count(site), 0);
  const measures: Record<string, (array: string) => number> = {
    sectors: (array) => sum(array, ({ sectors }) => sectors),
    requests: (array) => sum(array, ({ requests }) => requests),
    wavefronts: (array) => sum(array, ({ wavefronts }) => wavefronts),
    "extra wavefronts": (array) => sum(array, (site) => site.wavefronts - site.ideal_wavefronts),
    atomics: (array) => sum(array, ({ kind, lanes }) => (kind === "atomic" ? lanes : 0)),
    "requests per warp": (array) => {
      const warps = new Map<string, number>();
      for (const { site, block, warp } of accesses)
        if (site.space === "global" && (!array || site.buffer === array)) {
          const key = `${block} ${warp}`;
          warps.set(key, (warps.get(key) ?? 0) + 1);
        }
      return Math.max(0, ...warps.values());
    },
  };
  const broken: string[] = [];
  const kept: string[] = [];
  const { at_most, at_least } = limits;
  for (const [least, [name, limit]] of [
    ...Object.entries(at_most).map((entry) => [false, entry] as const),
    ...Object.entries(at_least).map((entry) => [true, entry] as const),
  ]) {
    const [what, array = ""] = name.split(" of ");
    const measure = measures[what!];
    if (!measure) throw new Error(`nothing counts ${what}`);
    const total = measure(array);
    const text = `${name}: ${total} at ${cases[limits.case]!.label}; the limit is ${limit}`;
    if (least ? total >= limit : total <= limit) kept.push(text);
    else broken.push(`The result is right, but the kernel takes too ${least ? "few" : "many"} ${text}. ${LESSONS[what!] ?? ""}`.trim());
  }
  return { broken, kept };
}

export function decode(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function equal(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, i) => byte === b[i]);
}
