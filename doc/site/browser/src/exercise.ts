// What doc/site/exercises.py writes for a kernel. Arrays are base64, little-endian.
import type { Counts } from "./machine";
import type { Problem } from "./report";

export type Type = "float32" | "int32" | "uint32";

export interface Given {
  name: string;
  type: Type;
  data?: string; // undefined: an output, not written before the call
  elements: number;
  start: number; // element of an aligned address at which it begins
}
export interface Expected {
  name: string;
  value: string; // of float64, or of the array's own type if that is whole
  tolerance?: string; // of float32
  others: string[]; // whole numbers that are as right
}
/** Inputs of some dimensions, and what must come out. */
export interface Case {
  label: string;
  dims: Record<string, number>;
  arrays: Given[]; // the contract's arguments, without optional ones that are left out
  scalars: Record<string, { type: "int" | "float"; value: number }>;
  expected: Expected[];
}
export interface Exercise {
  name: string; // of the op
  file: string;
  source: string;
  flags: string[]; // of clang
  device: Record<string, number | string>; // what a header may ask about
  outputs: string[];
  optional: string[];
  kinds: string[]; // of problems, by their number
  accesses: string[]; // kinds of them
  counts: (keyof Counts)[]; // of a line's accesses
  cases: Case[];
  every: boolean; // whether a kernel must take each of them
  limits: { case: number; bounds: [string, "many" | "few", number][] };
  marks: string; // macros by which the kernel prints "@" where a limit counts it, or ""
  lessons: Record<string, string>; // what a kernel that breaks a limit has to learn, by the measure
}

/** A kernel that does what it must not, or cannot be run; `problems`: what the emulator has seen. */
export class Wrong extends Error {
  problems: Problem[] = [];
}

const VIEWS = { float32: Float32Array, float64: Float64Array, int32: Int32Array, uint32: Uint32Array };

export function decode(text: string): Uint8Array<ArrayBuffer> {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

/** What is wrong with an output, as Expected.verify in tolerance.py has it; undefined if nothing is. */
export function compare(result: Uint8Array<ArrayBuffer>, type: Type, expected: Expected): string | undefined {
  const whole = type !== "float32";
  const read = (text: string, as: keyof typeof VIEWS) => new VIEWS[as](decode(text).buffer);
  const got = new VIEWS[type](result.buffer);
  const value = read(expected.value, whole ? type : "float64");
  const others = expected.others.map((other) => read(other, type));
  const tolerance = expected.tolerance === undefined ? undefined : read(expected.tolerance, "float32");
  const isRight = (i: number) => {
    const [x, y] = [got[i]!, value[i]!];
    if (whole) return x === y || others.some((other) => other[i] === x);
    if (!Number.isFinite(y)) return !Number.isFinite(x);
    return x === Math.fround(y) || Math.abs(x - y) <= tolerance![i]!; // false for NaN
  };
  const wrong: number[] = [];
  for (let i = 0; i < got.length; i++) if (!isRight(i)) wrong.push(i);
  if (!wrong.length) return undefined;
  const first = wrong[0]!;
  const within = tolerance ? ` ± ${tolerance[first]!.toPrecision(2)}` : "";
  const [is, should] = [got[first]!, value[first]!].map((x) => (whole ? x : Number(x.toPrecision(7))));
  const name = `${expected.name}[${first}]`;
  return `${name} is ${is}, expected ${should}${within}; ${wrong.length} of ${got.length} elements are wrong`;
}

export function equal(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, i) => byte === b[i]);
}
