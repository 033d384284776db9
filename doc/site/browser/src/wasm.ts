// What clang's linker leaves to do in a WebAssembly file: to read a few of its sections, and to let
// a kernel say where it is. The format: https://webassembly.github.io/spec/core/binary/

class Reader {
  at = 0;
  constructor(readonly bytes: Uint8Array) {}
  byte(): number {
    return this.bytes[this.at++]!;
  }
  /** An unsigned or signed LEB128 number; of 64 bits, whose value nobody needs, only the length. */
  leb(): number {
    let value = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = this.byte();
      if (shift < 32) value |= (byte & 127) << shift;
      if (byte < 128) return value >>> 0;
    }
  }
  skip(bytes: number): void {
    this.at += bytes;
  }
  name(): string {
    const length = this.leb();
    this.skip(length);
    return new TextDecoder().decode(this.bytes.subarray(this.at - length, this.at));
  }
}

function leb(value: number): number[] {
  const bytes = [];
  for (; value > 127; value >>>= 7) bytes.push((value & 127) | 128);
  return [...bytes, value];
}

/** An `i32.const`: its number is signed. */
function constant(value: number): number[] {
  const bytes = [0x41];
  for (; value > 63 || value < -64; value >>= 7) bytes.push((value & 127) | 128);
  return [...bytes, value & 127];
}

interface Section {
  id: number;
  start: number; // of its content
  end: number;
}

function sections(bytes: Uint8Array): Section[] {
  const reader = new Reader(bytes);
  const found = [];
  reader.skip(8);
  while (reader.at < bytes.length) {
    const id = reader.byte();
    const size = reader.leb();
    found.push({ id, start: reader.at, end: reader.at + size });
    reader.skip(size);
  }
  return found;
}

const CUSTOM = 0,
  IMPORTS = 2,
  CODE = 10;

/** How much memory and how many places of the table a module wants (section dylink.0). */
export function wanted(bytes: Uint8Array): { memory: number; table: number } {
  for (const { id, start } of sections(bytes)) {
    if (id !== CUSTOM) continue;
    const reader = new Reader(bytes);
    reader.at = start;
    if (reader.name() !== "dylink.0" || reader.byte() !== 1) continue;
    reader.leb(); // the size of the subsection
    const memory = reader.leb();
    reader.leb(); // its alignment: what allocate() returns has it
    return { memory, table: reader.leb() };
  }
  return { memory: 0, table: 0 };
}

function importedFunctions(bytes: Uint8Array, section: Section): number {
  const reader = new Reader(bytes);
  reader.at = section.start;
  let functions = 0;
  for (let left = reader.leb(); left > 0; left--) {
    reader.name();
    reader.name();
    const kind = reader.byte();
    if (kind === 0) functions++;
    if (kind === 1 || kind === 3) reader.skip(1); // the type of a table's elements, or of a global
    if (kind === 3)
      reader.skip(1); // whether it can change
    else if (kind === 0) reader.leb();
    else if (reader.byte() & 1)
      (reader.leb(), reader.leb()); // limits of a memory or a table
    else reader.leb();
  }
  return functions;
}

/** Goes past the rest of an instruction whose opcode has just been read. */
function skipImmediates(reader: Reader, opcode: number): void {
  if (opcode >= 0x28 && opcode <= 0x3e)
    (reader.leb(), reader.leb()); // loads and stores
  else if (opcode === 0x43)
    reader.skip(4); // f32.const
  else if (opcode === 0x44)
    reader.skip(8); // f64.const
  else if (opcode === 0x0e)
    for (let n = reader.leb() + 1; n > 0; n--) reader.leb(); // br_table
  else if (opcode === 0x11)
    (reader.leb(), reader.leb()); // call_indirect
  else if (opcode === 0x1c)
    for (let n = reader.leb(); n > 0; n--) reader.leb(); // select of a type
  else if (opcode === 0xfc) {
    const operation = reader.leb();
    if ([8, 10, 12, 14].includes(operation))
      (reader.leb(), reader.leb()); // two indices
    else if (operation > 8) reader.leb(); // one
  } else if (
    [0x02, 0x03, 0x04, 0x0c, 0x0d, 0x3f, 0x40, 0x41, 0x42, 0xd0, 0xd2].includes(opcode) ||
    (opcode >= 0x20 && opcode <= 0x26)
  )
    reader.leb(); // blocks, branches, constants, variables
  else if (opcode > 0xc4) throw new Error(`instruction 0x${opcode.toString(16)} is not known`);
}

/**
 * The kernel's file, in which each call of a function of the runtime first writes the place behind
 * the call to memory, at `address`: the number that a return address is on other machines. Places
 * count from the start of the code, as in the debug information of `bytes`, which is left out.
 */
export function sayWhere(bytes: Uint8Array, address: number): Uint8Array<ArrayBuffer> {
  const all = sections(bytes);
  const imported = all.find(({ id }) => id === IMPORTS);
  const functions = imported ? importedFunctions(bytes, imported) : 0;
  const result: Uint8Array[] = [bytes.subarray(0, 8)];
  for (const { id, start, end } of all) {
    if (id === CUSTOM) continue;
    const content = id === CODE ? mark(bytes, start, functions, address) : [bytes.subarray(start, end)];
    const size = content.reduce((sum, part) => sum + part.length, 0);
    result.push(Uint8Array.from([id, ...leb(size)]), ...content);
  }
  return joined(result);
}

function mark(bytes: Uint8Array, start: number, functions: number, address: number): Uint8Array[] {
  const reader = new Reader(bytes);
  reader.at = start;
  const count = reader.leb();
  const result = [Uint8Array.from(leb(count))];
  for (let left = count; left > 0; left--) {
    const size = reader.leb();
    const end = reader.at + size;
    const parts = [];
    let copied = reader.at;
    for (let groups = reader.leb(); groups > 0; groups--) (reader.leb(), reader.skip(1)); // locals
    while (reader.at < end) {
      const at = reader.at;
      const opcode = reader.byte();
      if (opcode !== 0x10) {
        skipImmediates(reader, opcode);
      } else if (reader.leb() < functions) {
        const store = [0x36, 2, 0]; // i32.store
        const where = [...constant(address), ...constant(reader.at - start), ...store];
        parts.push(bytes.subarray(copied, at), Uint8Array.from(where));
        copied = at;
      }
    }
    parts.push(bytes.subarray(copied, end));
    const body = joined(parts);
    result.push(Uint8Array.from(leb(body.length)), body);
  }
  return result;
}

function joined(parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) (all.set(part, at), (at += part.length));
  return all;
}
