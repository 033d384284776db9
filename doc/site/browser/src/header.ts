// The machine-read lines of a rung's header (ladder/core/contract/launch_plan.py): Needs, Define,
// Launch and Scratch. Their expressions are Python's, of whole numbers.
import { Wrong } from "./exercise";
import type { Geometry } from "./machine";

type Value = number | string | Value[];
type Names = Record<string, Value>;
type Lazy = () => Value; // so that the part of an `if` that is not chosen may divide by 0

const TOKEN = /\s*(?:(\d+)|([A-Za-z_]\w*)|(\/\/|[<>=!]=|[-+*%<>(),]))/y;
const WORDS = ["if", "else", "and", "or", "not", "in"];
const LEVELS = [["or"], ["and"], ["in", "<", ">", "<=", ">=", "==", "!="], ["+", "-"], ["*", "//", "%"]];

function whole(value: Value): number {
  if (typeof value === "number") return value;
  throw new Wrong(`${value} is not a whole number`);
}

function divisor(value: Value): number {
  if (whole(value) !== 0) return whole(value);
  throw new Wrong("it divides by 0");
}

const OPERATORS: Record<string, (a: Value, b: Value) => Value> = {
  or: (a, b) => Number(Boolean(a) || Boolean(b)),
  and: (a, b) => Number(Boolean(a) && Boolean(b)),
  in: (a, b) => Number((b as Value[]).includes(a)),
  "<": (a, b) => Number(whole(a) < whole(b)),
  ">": (a, b) => Number(whole(a) > whole(b)),
  "<=": (a, b) => Number(whole(a) <= whole(b)),
  ">=": (a, b) => Number(whole(a) >= whole(b)),
  "==": (a, b) => Number(a === b),
  "!=": (a, b) => Number(a !== b),
  "+": (a, b) => whole(a) + whole(b),
  "-": (a, b) => whole(a) - whole(b),
  "*": (a, b) => whole(a) * whole(b),
  "//": (a, b) => Math.floor(whole(a) / divisor(b)),
  "%": (a, b) => whole(a) - whole(b) * Math.floor(whole(a) / divisor(b)),
};
const FUNCTIONS: Record<string, (...values: number[]) => number> = {
  ceil_div: (a, b) => Math.ceil(a / divisor(b)),
  min: Math.min,
  max: Math.max,
};

/** The value of an expression. */
export function evaluate(text: string, names: Names): Value {
  const tokens: string[] = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.trimEnd().length) {
    const match = TOKEN.exec(text);
    if (!match) throw new Wrong(`cannot read '${text}'`);
    tokens.push(match[0].trim());
  }
  let at = 0;
  const next = (...these: string[]) => (these.includes(tokens[at]!) ? tokens[at++] : undefined);
  const amiss = () => new Wrong(`cannot read '${text}' at ${tokens[at] ?? "its end"}`);

  function choice(): Lazy {
    const first = binary(0);
    if (!next("if")) return first;
    const test = binary(0);
    if (!next("else")) throw amiss();
    const second = choice();
    return () => (test() ? first() : second());
  }
  function binary(level: number): Lazy {
    if (level === LEVELS.length) return factor();
    if (level === 2 && next("not")) {
      const inner = binary(level);
      return () => Number(!inner());
    }
    let left = binary(level + 1);
    for (let sign; (sign = next(...LEVELS[level]!));) {
      const [first, second, operator] = [left, binary(level + 1), OPERATORS[sign]!];
      left = () => operator(first(), second());
    }
    return left;
  }
  function factor(): Lazy {
    if (next("-")) {
      const inner = factor();
      return () => -whole(inner());
    }
    if (next("(")) return list();
    const token = tokens[at];
    if (token === undefined || WORDS.includes(token) || !/^\w/.test(token)) throw amiss();
    at++;
    if (/^\d/.test(token)) return () => Number(token);
    if (!next("(")) {
      const known = Object.keys(names).join(", ");
      if (!(token in names)) throw new Wrong(`there is no ${token}; there are ${known}`);
      return () => names[token]!;
    }
    const called = FUNCTIONS[token];
    if (!called) throw new Wrong(`there is no function ${token}, only ceil_div, min, max`);
    const values = list();
    return () => called(...[values()].flat().map(whole));
  }
  function list(): Lazy {
    const values: Lazy[] = [];
    let commas = 0;
    while (!next(")")) {
      values.push(choice());
      if (next(",")) commas++;
      else if (tokens[at] !== ")") throw amiss();
    }
    return () => (commas ? values.map((value) => value()) : values[0]!());
  }

  const value = choice();
  if (at < tokens.length) throw amiss();
  try {
    return value();
  } catch (error) {
    throw new Wrong(`cannot evaluate '${text}': ${(error as Error).message}`);
  }
}

/** What a call of some dimensions needs. `refusal`: why the kernel cannot run it. */
export interface Plan {
  refusal?: string;
  macros: string[];
  launches: Geometry[];
  scratch: { name: string; elements: number }[];
}

/** The entries of a header by key; a line that continues another one is indented further. */
export function readHeader(source: string): Record<string, string[]> {
  const header: Record<string, string[]> = {};
  let entry: string[] | undefined;
  for (const line of source.split("\n").slice(1)) {
    if (!line.startsWith("//")) break;
    const found = /^\/\/ (\w+):\s*(.*)$/.exec(line.trimEnd());
    if (found) (entry = header[found[1]!] ??= []).push(found[2]!);
    else entry?.push(`${entry.pop()} ${line.slice(2).trim()}`);
  }
  return header;
}

function read(form: RegExp, entry: string, says: string): string[] {
  const found = form.exec(entry);
  if (!found) throw new Wrong(`${says}: ${entry}`);
  return found;
}

/** What the header of a kernel says for dimensions and a device, given as `names`. */
export function plan(source: string, names: Names): Plan {
  const header = readHeader(source);
  const entries = (key: string) =>
    (header[key] ?? []).flatMap((line) => line.split(";").map((part) => part.trim())).filter(Boolean);
  const other = ["Tiles", "Prefetch", "Args"].find((key) => header[key]);
  if (other) throw new Wrong(`the browser does not run kernels with a line '${other}:'`);
  const known = { ...names };
  const macros: string[] = [];
  for (const entry of entries("Define")) {
    const form = /^([A-Za-z_][\w, ]*?)\s*=([^=].*)$/;
    const [, left, right] = read(form, entry, "Define must read 'NAME = expression'");
    const values = [evaluate(right!, known)].flat();
    left!.split(/\s*,\s*/).forEach((name, i) => {
      known[name] = values[i]!;
      macros.push(`${name}=${values[i]}`);
    });
  }
  for (const condition of entries("Needs"))
    if (condition !== "nothing" && !/\b(sm|cdna|rdna)\b/.test(condition) && !evaluate(condition, known))
      return { refusal: `it needs ${condition}`, macros, launches: [], scratch: [] };
  const example = "// Launch: kernel<<<ceil_div(N, 256), 256>>>";
  if (!header.Launch) throw new Wrong(`the header says nothing of the launch; write e.g. '${example}'`);
  const launches = header.Launch.flatMap((line) => {
    const form = /^(\w+)\s*<<<(.*)>>>(?:\s*if\s+(.+))?$/;
    const [, kernel, geometry, condition] = read(form, line, "Launch must read 'kernel<<<grid, block>>>'");
    if (condition && !evaluate(condition, known)) return [];
    const [grid, block, shared = 0] = evaluate(`(${geometry},)`, known) as Value[];
    return [launch(line, kernel!, three(grid ?? 1), three(block ?? 0), whole(shared))];
  });
  const scratch = entries("Scratch").map((entry) => {
    const form = /^(?:real|u?int32|float32)\s+(\w+)\s*\[(.+)\]$/;
    const [, name, shape] = read(form, entry, "Scratch must read 'float32 name[N, C]'");
    const sizes = (evaluate(`(${shape},)`, known) as Value[]).map(whole);
    return { name: name!, elements: sizes.reduce((all, size) => all * size, 1) };
  });
  return { macros, launches, scratch };
}

function three(value: Value): number[] {
  return [...[value].flat().map(whole), 1, 1].slice(0, 3);
}

function launch(line: string, kernel: string, grid: number[], block: number[], shared: number): Geometry {
  const threads = block.reduce((all, size) => all * size);
  if ([...grid, ...block].every((size) => size >= 1) && threads <= 1024)
    return { kernel, grid, block, shared };
  throw new Wrong(
    `a launch of grid (${grid}) and block (${block}) is not possible; a block has 1 to 1,024 threads: ${line}`,
  );
}
