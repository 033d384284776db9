// One run of a kernel on the inputs of a case, in an order of its threads.
import type { Library } from "./compile";
import { type Case, type Exercise, Wrong, compare, decode, equal } from "./exercise";
import type { Plan } from "./header";
import { type Argument, type Geometry, Machine, type Order, type RawResult } from "./machine";
import { type Access, type Problem, type Site, Words } from "./report";
import type { DeclaredKernel } from "./source";

/** What a run showed; `results`: its outputs. */
export interface Seen {
  sites: Site[];
  accesses: Access[];
  results: Uint8Array[];
  marks: number; // see Machine
}

export class Run {
  private readonly named = new Map<string, Argument>(); // all that a kernel can take
  private readonly inputs = new Map<string, Uint8Array>();

  constructor(
    private readonly machine: Machine,
    private readonly library: Library,
    private readonly exercise: Exercise,
    private readonly source: string,
    private readonly kernels: DeclaredKernel[],
    private readonly one: Case,
  ) {}

  /** Raises Wrong, or Wrong where the kernel cannot be called. */
  take(plan: Plan, order: Order): Seen {
    this.machine.load(this.library.module);
    this.place(plan);
    const seen: Seen = { sites: [], accesses: [], results: [], marks: 0 };
    for (const geometry of plan.launches) {
      const { sites, accesses } = this.launch(geometry, order);
      seen.sites = seen.sites.concat(sites); // push(...) takes no millions
      seen.accesses = seen.accesses.concat(accesses);
    }
    for (const [name, bytes] of this.inputs)
      if (!equal(this.contents(name), bytes)) throw this.wrong(`it changes its input ${name}`);
    for (const expected of this.one.expected) {
      const { type } = this.one.arrays.find(({ name }) => name === expected.name)!;
      const result = this.contents(expected.name);
      const amiss = compare(result, type, expected);
      if (amiss) throw this.wrong(amiss);
      seen.results.push(result);
    }
    return { ...seen, marks: this.machine.marks };
  }

  private wrong(message: string, problems: Problem[] = []): Wrong {
    return Object.assign(new Wrong(`${message} [${this.one.label}]`), { problems });
  }

  private place({ scratch }: Plan): void {
    const { arrays, dims, scalars } = this.one;
    for (const { name, elements, start, data } of arrays) {
      const bytes = data === undefined ? undefined : decode(data);
      this.array(name, elements, start, bytes);
      if (bytes && !this.exercise.outputs.includes(name)) this.inputs.set(name, bytes);
    }
    for (const { name, elements } of scratch) this.array(name, elements, 0);
    for (const [name, value] of Object.entries(dims)) this.named.set(name, { value, type: "int" });
    for (const [name, scalar] of Object.entries(scalars)) this.named.set(name, scalar);
    const missing = this.exercise.optional.filter((name) => !this.named.has(name));
    for (const name of missing) this.named.set(name, { value: 0, type: "int" }); // a null pointer
  }

  private array(name: string, elements: number, start: number, data?: Uint8Array): void {
    const address = this.machine.allocate(4 * (start + elements)) + 4 * start;
    const bytes = new Uint8Array(this.machine.memory.buffer, address, 4 * elements).fill(0xff); // NaN
    bytes.set(data ?? []);
    this.named.set(name, { address, bytes: 4 * elements, elementBytes: 4 });
  }

  private contents(name: string): Uint8Array<ArrayBuffer> {
    const { address, bytes } = this.named.get(name) as { address: number; bytes: number };
    return new Uint8Array(this.machine.memory.buffer, address, bytes).slice();
  }

  private launch(geometry: Geometry, order: Order): Pick<Seen, "sites" | "accesses"> {
    const kernel = this.kernels.find(({ name }) => name === geometry.kernel);
    if (!kernel) throw new Wrong(`the header launches ${geometry.kernel}, which the file does not define`);
    const taken = kernel.parameters.map((name) => {
      const argument = this.named.get(name);
      const known = () => [...this.named.keys()].join(", ");
      if (!argument) throw new Wrong(`${this.exercise.name} has no argument ${name}, but ${known()}`);
      return { name, ...argument };
    });
    let raw: RawResult;
    try {
      raw = this.machine.launch(geometry, taken, order);
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError)) throw error;
      const line = this.library.lines[this.machine.where()]!;
      const message = `line ${line}, or soon after it: ${error.message}`;
      throw this.wrong(message, [{ kind: "crash", line, message }]);
    }
    const buffers = taken.flatMap((argument) => ("address" in argument ? [argument] : []));
    const words = new Words(this.exercise, this.source, kernel.parameters, buffers, this.library.lines);
    const problems = raw.problems.flatMap((problem) => words.problem(problem) ?? []);
    if (problems.length) {
      // A thread that comes too early also reads what is not there yet: the race explains it.
      const first = problems.find(({ kind }) => kind !== "uninitialised shared memory") ?? problems[0]!;
      throw this.wrong(first.message, [first, ...problems.filter((problem) => problem !== first)]);
    }
    const sites = raw.sites.map((site) => words.site(site));
    return { sites, accesses: raw.requests.map((request) => ({ ...request, site: sites[request.site]! })) };
  }
}
