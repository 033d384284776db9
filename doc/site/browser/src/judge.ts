// Checks a kernel as `python -m ladder check` does: at several shapes, with the threads in several
// orders, against the float64 reference, whose results and tolerances the build of the site wrote.
import { type Headers, type Library, compile } from "./compile";
import { type Case, type Exercise, Wrong, equal } from "./exercise";
import { plan, readHeader } from "./header";
import { judge } from "./limits";
import { Machine } from "./machine";
import type { Access, Problem, Site } from "./report";
import { Run, type Seen } from "./run";
import { prepare, withMacros } from "./source";

export interface Verdict {
  status: "passed" | "failed" | "refused";
  message: string;
  problems: Problem[];
  notes: string[]; // on limits
  sites: Site[]; // of the case whose accesses are shown
  accesses: Access[];
  label: string; // of that case
}
type Emulator = Awaited<ReturnType<typeof emulatorOf>>;

const ORDERS = [
  { seed: 0, early: false }, // in order: what it names comes first
  { seed: 4, early: true },
];
const ALL = 1 << 20; // requests of a line that are kept, where some limit needs more than the first

/** The emulator from the two files that build.mjs has written. */
export async function emulatorOf(bytes: BufferSource, headers: Headers) {
  const runtime = await WebAssembly.compile(bytes);
  return { runtime, address: new Machine(runtime).pc, headers };
}

export async function check(
  exercise: Exercise,
  source: string,
  emulator: Emulator,
  tell: (text: string) => void = () => {},
): Promise<Verdict> {
  const nothing = { problems: [], notes: [], sites: [], accesses: [], label: "" };
  const verdict: Verdict = { ...nothing, status: "failed", message: "" };
  const deterministic = !(readHeader(source).Deterministic?.[0] ?? "yes").startsWith("no");
  const libraries = new Map<string, Library>();
  let counted: Pick<Seen, "accesses" | "marks"> = { accesses: [], marks: 0 };
  const machine = new Machine(emulator.runtime);
  const perWarp = exercise.limits.bounds.some(([name]) => name.startsWith("requests per warp"));
  let ran = 0;
  try {
    const prepared = (source: string) => prepare(exercise.file, source, emulator.headers.includes);
    const { kernels } = prepared(source); // its errors name the reader's own lines
    const { text } = prepared(withMacros(source, exercise.marks));
    for (const [index, one] of exercise.cases.entries()) {
      const planned = plan(source, { ...one.dims, ...exercise.device });
      if (planned.refusal && exercise.every)
        throw new Wrong(`it must take every shape here, and refuses ${one.label}: ${planned.refusal}`);
      if (planned.refusal) {
        verdict.message = `it refuses every shape: ${planned.refusal}`;
        continue;
      }
      const constants = planned.macros.join(", ");
      let library = libraries.get(constants);
      if (!library) {
        tell(`compiling${constants && ` with ${constants}`}`);
        library = await compile(text, exercise, kernels, planned.macros, emulator);
        libraries.set(constants, library);
      }
      tell(`running: ${one.label}`);
      const runs: Seen[] = [];
      for (const order of ORDERS) {
        const run = new Run(machine, library, exercise, source, kernels, one);
        const trace = perWarp && index === exercise.limits.case && order === ORDERS[0] ? ALL : 1;
        runs.push(run.take(planned, { ...order, trace }));
        if (deterministic) sameBits(one, runs);
      }
      ran++;
      if (index !== exercise.limits.case) continue;
      counted = runs[0]!;
      Object.assign(verdict, { ...shown(exercise, runs[0]!), label: one.label });
    }
  } catch (error) {
    if (!(error instanceof Wrong)) throw error;
    return { ...verdict, message: error.message, problems: error.problems };
  }
  if (!ran) return { ...verdict, status: "refused" };
  const [broken, kept] = judge(exercise, source, verdict.sites, counted);
  if (broken.length) return { ...verdict, message: broken[0]!, notes: [...broken.slice(1), ...kept] };
  return { ...verdict, status: "passed", message: `right at ${ran} shapes and kinds of input`, notes: kept };
}

function sameBits(one: Case, runs: Seen[]): void {
  one.expected.forEach(({ name }, i) => {
    if (equal(runs[0]!.results[i]!, runs.at(-1)!.results[i]!)) return;
    const remedy = "a kernel that may do so says 'Deterministic: no' in its header";
    throw new Wrong(`two runs on the same input differ in ${name} [${one.label}]; ${remedy}`);
  });
}

const keyOf = ({ line, buffer, space, kind, bytes }: Site) => [line, buffer, space, kind, bytes].join();

/** For each line, buffer and kind: the sum, as Record.lines in kernel.py has it, and the first request. */
function shown(exercise: Exercise, seen: Seen): Pick<Verdict, "sites" | "accesses"> {
  const sites = new Map<string, Site>();
  for (const site of seen.sites.filter(({ requests }) => requests)) {
    const known = sites.get(keyOf(site));
    if (!known) sites.set(keyOf(site), { ...site });
    else for (const count of exercise.counts) known[count] += site[count];
  }
  const firsts = new Map([...seen.accesses].reverse().map((access) => [keyOf(access.site), access]));
  return { sites: [...sites.values()].sort((a, b) => a.line - b.line), accesses: [...firsts.values()] };
}
