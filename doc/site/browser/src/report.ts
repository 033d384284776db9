// What a launch was seen to do, in the words of ladder/core/emulator/kernel.py.
import type { Exercise } from "./exercise";
import type { Counts, Place, RawProblem, RawRequest, RawSite } from "./machine";
import { SECONDS } from "./machine";
import { withoutComments } from "./source";

const BESIDE = 4096; // bytes from a buffer within which an access was most likely meant for it

export interface Problem {
  kind: string;
  line: number; // 0: not known
  other?: number; // the other thread's line
  message: string;
}

/** The accesses of one line to one buffer. */
export interface Site extends Counts {
  line: number;
  buffer: string;
  space: "global" | "shared";
  kind: string;
  bytes: number;
}

/** One request of a warp: which lane accesses which byte of the buffer. */
export type Access = Omit<RawRequest, "site"> & { site: Site };

export interface Buffer {
  name: string;
  address: number;
  bytes: number;
  elementBytes: number;
}

export class Words {
  /** `names`: the kernel's parameters. */
  constructor(
    private readonly exercise: Exercise,
    private readonly source: string,
    private readonly names: string[],
    private readonly buffers: Buffer[],
    private readonly lines: number[],
  ) {}

  site(site: RawSite): Site {
    return {
      ...site,
      line: this.lines[site.pc]!,
      buffer: this.buffer(site),
      space: site.shared ? "shared" : "global",
      kind: this.exercise.accesses[site.access]!,
    };
  }

  private buffer(where: RawSite | RawProblem): string {
    return where.shared || this.names[where.argument] || "a __device__ variable";
  }

  /** Undefined if it is none. */
  problem(problem: RawProblem): Problem | undefined {
    const kind = this.exercise.kinds[problem.kind]!;
    const line = this.lines[problem.place.pc]!;
    const other = problem.other.pc ? this.lines[problem.other.pc] : undefined;
    if (kind === "divergent barrier" && other === line) return; // one barrier, compiled twice
    const message = this.say(kind, problem, other);
    return { kind, line, other, message: line ? `line ${line}: ${message}` : message };
  }

  private say(kind: string, problem: RawProblem, line?: number): string {
    const { text } = problem;
    const action = this.exercise.accesses[problem.place.access];
    const them = `thread ${triple(problem.other.thread)}`;
    const there = line ? ` in line ${line}` : "";
    const who = named(problem.place);
    const access = `${action} of ${problem.bytes} bytes`;
    switch (kind) {
      case "race":
        return this.race(problem, who, there);
      case "out of bounds":
        if (text) return `${who}: ${text}`;
        if (problem.shared || problem.argument >= 0)
          return `${who}: ${access} across the end of ${this.buffer(problem)}`;
        return `${who}: ${access} outside of every buffer${this.beside(problem.offset)}`;
      case "divergent barrier":
        if (line === undefined) return `${who} waits at a barrier, and ${them} has returned`;
        return `${who} waits at ${text ? "the same warp operation" : "a barrier"}, and ${them} at another one,${there}`;
      case "uninitialised shared memory":
        return `${who} reads ${this.buffer(problem)} at offset ${problem.offset}, which no thread wrote`;
      case "time limit":
        return (
          `${who} still runs after ${SECONDS} s, the limit of a launch: an endless loop? ` +
          "Look at what should make its condition false"
        );
      case "deadlock":
        return `deadlock: ${who} ${text}${there}`;
      case "assertion":
        return `${who}: assertion failed: ${text}`;
      case "crash":
      case "misaligned":
      case "too much shared memory":
        return `${who}: ${text}`;
    }
    return `${who} ${text}${there}`;
  }

  private race(problem: RawProblem, who: string, there: string): string {
    const { place: now, other: before } = problem;
    const them =
      String(before.block) === String(now.block) ? `thread ${triple(before.thread)}` : named(before);
    const space = problem.shared ? "shared" : "global";
    const [first, second] = [this.exercise.accesses[now.access]!, this.exercise.accesses[before.access]!];
    const text =
      `race on ${this.buffer(problem)} in ${space} memory, offset ${problem.offset}: ${first} by ${who}, and ` +
      `${second} by ${them}${there}, with ${problem.text} between them`;
    const code = withoutComments(this.source);
    const kinds = [first, second].sort().join();
    if (kinds === "atomic,read" && /\batomicCAS\b/.test(code))
      return (
        `${text}; a first read before a loop of atomicCAS does no harm if the loop compares with it: read by ` +
        "atomicAdd(address, 0), which says so"
      );
    if (space === "shared" && /\bvolatile\b/.test(code))
      return (
        `${text}; volatile orders nothing: since Volta the lanes of a warp may run apart, and __syncwarp() must ` +
        "stand between the write and the read"
      );
    return text;
  }

  /** Which element the address would be of the buffer that it is next to. */
  private beside(at: number): string {
    const gap = ({ address, bytes }: Buffer) => Math.max(address - at, at - address - bytes);
    const nearest = this.buffers.filter(({ bytes }) => bytes).sort((a, b) => gap(a) - gap(b))[0];
    if (!nearest || gap(nearest) > BESIDE) return "";
    const { name, address, bytes, elementBytes } = nearest;
    return `: element ${Math.floor((at - address) / elementBytes)} of ${name}, which has ${bytes / elementBytes}`;
  }
}

function triple(values: number[]): string {
  return `(${values.join(", ")})`;
}

function named({ block, thread }: Place): string {
  return `block ${triple(block)}, thread ${triple(thread)}`;
}
