// The emulated GPU: the runtime and a kernel, two WebAssembly modules in one memory. A launch that
// traps leaves the memory in no state to go on with.

export const SECONDS = 10; // that one launch may take
const WARP = 32;

export interface Place {
  pc: number;
  block: number[];
  thread: number[];
  access: number;
}
/** A piece of memory: the name of an array in shared memory, or "" and the number of an argument. */
interface Where {
  shared: string;
  argument: number;
  bytes: number;
}
export interface RawProblem extends Where {
  kind: number;
  place: Place;
  other: Place;
  offset: number;
  text: string;
}
type Count = "sectors" | "wavefronts";
export type Counts = Record<"requests" | "lanes" | Count | `ideal_${Count}`, number>;
export interface RawSite extends Where, Counts {
  pc: number;
  access: number;
}
export interface RawRequest {
  site: number;
  warp: number;
  block: number[];
  lanes: number[];
  offsets: number[];
}
export interface RawResult {
  problems: RawProblem[];
  sites: RawSite[];
  requests: RawRequest[];
}

export interface Geometry {
  kernel: string;
  grid: number[];
  block: number[];
  shared: number;
}
export interface Order {
  seed: number;
  early: boolean;
  trace: number;
}
/** An array in the machine's memory, or a number and its type. */
export type Argument =
  { address: number; bytes: number; elementBytes: number } | { value: number; type: "int" | "float" };

type Exports = Record<string, any>;

/** What the two modules ask of the system: a clock, and nothing else that ever happens. */
function system(memory: () => WebAssembly.Memory) {
  const clock = (_id: number, _precision: bigint, to: number) => {
    const now = BigInt(Math.round(performance.now() * 1e6));
    new DataView(memory().buffer).setBigUint64(to, now, true);
    return 0;
  };
  const get = (_: unknown, name: string) => (name === "clock_time_get" ? clock : () => 0);
  return new Proxy({} as Record<string, unknown>, { get });
}

/** How much memory and how many places of the table a module of clang's linker wants. */
function wanted(module: WebAssembly.Module): { memory: number; table: number } {
  const bytes = new Uint8Array(WebAssembly.Module.customSections(module, "dylink.0")[0]!);
  const numbers: number[] = []; // LEB128: 7 bits a byte, the lowest first
  let shift = 0;
  for (const byte of bytes) {
    numbers[numbers.length - (shift ? 1 : 0)] = ((shift && numbers.at(-1)!) | ((byte & 127) << shift)) >>> 0;
    shift = byte > 127 ? shift + 7 : 0;
  }
  const [, , memory, , table] = numbers; // the kind and size of the subsection come first
  return { memory: memory!, table: table! };
}

export class Machine {
  private readonly runtime: Exports;
  private kernel: Exports = {};
  marks = 0; // that the kernel has printed since it was loaded: see marks of an Exercise
  private constants = { address: 0, bytes: 0 };

  constructor(runtime: WebAssembly.Module) {
    const wasi = system(() => this.memory);
    this.runtime = new WebAssembly.Instance(runtime, { wasi_snapshot_preview1: wasi } as any).exports;
    this.runtime._initialize();
  }

  /** Where the kernel writes the number of each call. */
  get pc(): number {
    return this.runtime.emulator_pc.value;
  }

  get memory(): WebAssembly.Memory {
    return this.runtime.memory;
  }

  private get table(): WebAssembly.Table {
    return this.runtime.__indirect_function_table;
  }

  /** A kernel for the launches that follow; its variables begin anew. */
  load(kernel: WebAssembly.Module): void {
    const { runtime } = this;
    this.marks = 0;
    const needs = wanted(kernel);
    const constant = (value: number, mutable = false) =>
      new WebAssembly.Global({ value: "i32", mutable }, value);
    const memoryBase = this.allocate(needs.memory);
    this.constants = { address: memoryBase, bytes: needs.memory };
    const tableBase = this.table.grow(needs.table);
    const late: [string, WebAssembly.Global, boolean][] = [];
    const imports: Record<string, Record<string, any>> = {};
    for (const { module, name, kind } of WebAssembly.Module.imports(kernel)) {
      let value;
      if (module.startsWith("GOT.")) {
        value = constant(0, true);
        late.push([name, value, module === "GOT.func"]);
      } else if (name === "__memory_base") value = constant(memoryBase);
      else if (name === "__table_base") value = constant(tableBase);
      else if (name.endsWith("emulator_print"))
        value = (format: number) => {
          if (this.text(format).startsWith("@")) this.marks++;
          return 0;
        };
      else if (kind === "function" && !(name in runtime))
        value = () => {
          throw new Error(`the emulator has no function ${name}`);
        };
      else value = runtime[name];
      (imports[module] ??= {})[name] = value;
    }
    const { exports } = new WebAssembly.Instance(kernel, imports as WebAssembly.Imports);
    for (const [name, place, isFunction] of late) {
      if (!(name in exports) && !(name in runtime)) continue; // weak, and there is none: 0
      const found = (name in exports ? exports : runtime)[name] as any;
      if (isFunction) place.value = this.pointer(found);
      else place.value = found.value + (name in exports ? memoryBase : 0);
    }
    (exports.__wasm_apply_data_relocs as any)?.();
    (exports.__wasm_call_ctors as any)?.();
    this.kernel = exports;
  }

  private pointer(called: Function): number {
    const place = this.table.grow(1);
    this.table.set(place, called);
    return place;
  }

  allocate(bytes: number): number {
    return this.runtime.allocate(Math.max(bytes, 1));
  }

  /** Runs the kernel; returns what was seen of it. Raises WebAssembly.RuntimeError for a trap. */
  launch({ kernel, grid, block, shared }: Geometry, given: Argument[], order: Order): RawResult {
    const values = given.flatMap((argument) => {
      if ("address" in argument) return [1, argument.address, argument.bytes, argument.elementBytes];
      const at = this.allocate(8);
      const view = new DataView(this.memory.buffer);
      if (argument.type === "float") view.setFloat32(at, argument.value, true);
      else view.setInt32(at, argument.value, true);
      return [0, at, 0, 0];
    });
    const { seed, early, trace } = order;
    const { address, bytes } = this.constants;
    const device = [shared, WARP, seed, Number(early), trace, SECONDS, address, bytes];
    const numbers = [...grid, ...block, ...device, given.length, ...values];
    const call = this.pointer(this.kernel[`emulator_call_${kernel}`]);
    const place = this.allocate(4 * numbers.length);
    new Int32Array(this.memory.buffer, place, numbers.length).set(numbers);
    this.runtime.launch(call, place);
    return JSON.parse(this.text(this.runtime.result()));
  }

  /** Where the last call from the kernel was, of a launch that has trapped. */
  where(): number {
    return new DataView(this.memory.buffer).getInt32(this.pc, true);
  }

  private text(address: number): string {
    const bytes = new Uint8Array(this.memory.buffer, address);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }
}
