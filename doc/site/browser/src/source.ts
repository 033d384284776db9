// A .cu file as C++: ladder/core/emulator/source.py, in TypeScript. A test compares the two.
import { Wrong } from "./exercise";

export interface DeclaredKernel {
  name: string;
  parameters: string[];
}

const TOKENS =
  /(?<comment>\/\/[^\n]*|\/\*[^]*?(?:\*\/|$(?![^])))|(?<string>"(?:\\[^]|[^"\\\n])*"|'(?:\\[^]|[^'\\\n])*')|(?<shared>(?:(?:(?<=[;{}/])|^)[ \t]*(?:[\w:]+(?:<[^;{}]*?>)?[ \t*]+)+|\b(?:(?:extern|static|volatile)\s+|(?:alignas|__align__)\s*\([^()]*\)\s*)*)\b__shared__\b[^;]*;)|(?<open>\{)|(?<close>\})/gm;
const INCLUDE = /^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)".*$/gm;
const ALIGNMENT = /(?:alignas|__align__)\s*\(([^()]*)\)|__attribute__\s*\(\(\s*aligned\s*\((.*?)\)\s*\)\)/g;
const KERNEL = /extern\s+"C"\s+__global__\b/g;
const ATTRIBUTE = /\b(__launch_bounds__|__cluster_dims__)\s*$/;

/** `includes`: the headers that it may include, by name. */
export function prepare(
  path: string,
  source: string,
  includes: Record<string, string>,
): { text: string; kernels: DeclaredKernel[] } {
  const text = flatten(path, source, includes, new Set());
  const ptx = /\b(?:asm|__asm|__asm__)\b/.exec(withoutComments(source));
  if (ptx)
    throw wrong(source, ptx.index, "inline PTX cannot run on a CPU; use the wrappers in ladder/include");
  const found = declaredKernels(text);
  const launchers = found.map((one) => `EMULATOR_KERNEL(${one.name}, ${one.cluster}, ${one.bound})\n`);
  return { text: `${text}\n${launchers.join("")}`, kernels: found };
}

/** The source with macros below its includes; its lines keep their numbers. */
export function withMacros(source: string, macros: string): string {
  return source.replace(
    /^(?:[^]*\n)?#include.*\n|^/,
    (head) => `${head}${macros}\n#line ${head.split("\n").length}\n`,
  );
}

function flatten(path: string, source: string, includes: Record<string, string>, seen: Set<string>): string {
  seen.add(path);
  const rewritten = rewriteShared(source);
  const body = rewritten
    .replace(INCLUDE, (match, name, at) => {
      const found = includes[name];
      if (found === undefined) return match; // the compiler explains best
      const from = `ladder/include/${name}`;
      if (seen.has(from)) return "";
      const text = flatten(from, found, includes, seen);
      return `${text}\n#line ${line(rewritten, at + match.length) + 1} "${path}"`;
    })
    .replace(/^[ \t]*#[ \t]*pragma[ \t]+once\b.*$/gm, "");
  return `#line 1 "${path}"\n${body}`;
}

function rewriteShared(source: string): string {
  let depth = 0;
  return source.replace(TOKENS, (text, ...rest) => {
    const groups = rest.at(-1);
    const at = rest.at(-3);
    depth += Number(groups.open !== undefined) - Number(groups.close !== undefined);
    if (groups.shared === undefined) return text;
    if (depth === 0) throw wrong(source, at, "declare shared memory inside the kernel, not at file scope");
    try {
      return declarations(text) + "\n".repeat(text.split("\n").length - 1);
    } catch (error) {
      throw wrong(source, at, (error as Error).message);
    }
  });
}

function declarations(statement: string): string {
  const plain = withoutComments(statement);
  const dynamic = /\bextern\b/.test(plain);
  const aligned = [...statement.matchAll(ALIGNMENT)].map((match) => match[1] ?? match[2]);
  const words = plain
    .replace(ALIGNMENT, " ")
    .replace(/[; \n]+$/, "")
    .replace(/\b(?:extern|__shared__|static)\b/g, " ")
    .replace(/\s+/g, " ")
    .trim();
  const [first, ...others] = split(words);
  const parts = /^(.+?[\s>*&])\s*(\w+\s*(?:\[.*\])?)$/.exec(first ?? "");
  if (/(?<![=<>!])=(?!=)/.test(words))
    throw new Error(
      `shared memory has no initial value: '${words}'; let a thread write it, and __syncthreads() follow`,
    );
  if (!parts) throw new Error(`cannot understand the shared memory declaration '${words}'`);
  const kind = parts[1]!.trim();
  const alignment = `emulator::alignment(${[`alignof(${kind})`, ...aligned].join(", ")})`;
  const variables = [parts[2]!, ...others].map(nameAndShape);
  if (dynamic) {
    const [name] = variables[0]!;
    return `${kind} *${name} = (${kind} *)emulator::emulator_dynamic_shared("${name}", ${alignment});`;
  }
  return variables
    .map(
      ([name, shape]) =>
        `static const char ${name}_key = 0; auto &${name} = *(${kind} (*)${shape})` +
        `emulator::emulator_shared(&${name}_key, "${name}", sizeof(${kind}${shape}), ${alignment});`,
    )
    .join(" ");
}

function nameAndShape(declarator: string): [string, string] {
  const parts = /^(\w+)\s*((?:\[.*\])?)$/.exec(declarator);
  if (!parts) throw new Error(`cannot understand '${declarator}' in a shared memory declaration`);
  return [parts[1]!, parts[2]!];
}

function declaredKernels(source: string): (DeclaredKernel & { cluster: string; bound: string })[] {
  const text = withoutComments(source);
  const found = [];
  for (const match of text.matchAll(KERNEL)) {
    let head = match.index + match[0].length;
    let opening = text.indexOf("(", head);
    let cluster = "1";
    let bound = "0";
    for (let attribute; opening >= 0 && (attribute = ATTRIBUTE.exec(text.slice(head, opening)));) {
      head = closing(text, opening);
      const first = split(text.slice(opening + 1, head - 1))[0] ?? "";
      if (attribute[1] === "__cluster_dims__") cluster = first;
      else bound = first;
      opening = text.indexOf("(", head);
    }
    if (opening < 0) throw new Wrong("a kernel's declaration is not complete");
    const name = /(\w+)\s*$/.exec(text.slice(head, opening));
    const inside = text.slice(opening + 1, closing(text, opening) - 1);
    const parameters = split(inside).filter((part) => part !== "void");
    const defined = text.slice(closing(text, opening)).trimStart().startsWith("{");
    if (name && defined)
      found.push({ name: name[1]!, parameters: parameters.map(parameterName), cluster, bound });
  }
  return found;
}

function parameterName(declaration: string): string {
  const name = /[\w>*&]\s*(?<=[\s*&])(\w+)\s*(?:\[\])?$/.exec(declaration);
  return name && name[1] !== "__restrict__" ? name[1]! : "";
}

function closing(text: string, opening: number): number {
  let depth = 0;
  for (let i = opening; i < text.length; i++) {
    depth += Number(text[i] === "(") - Number(text[i] === ")");
    if (depth === 0) return i + 1;
  }
  return text.length;
}

function split(text: string): string[] {
  const parts = [];
  let depth = 0;
  let start = 0;
  for (let i = 0; i < text.length; i++) {
    depth += Number("([{<".includes(text[i]!)) - Number(")]}>".includes(text[i]!));
    if (text[i] === "," && depth === 0) {
      parts.push(text.slice(start, i));
      start = i + 1;
    }
  }
  return [...parts, text.slice(start)].map((part) => part.trim()).filter(Boolean);
}

export function withoutComments(text: string): string {
  return text.replace(TOKENS, (token, ...rest) =>
    rest.at(-1).comment === undefined ? token : token.replace(/[^\n]/g, " "),
  );
}

function wrong(source: string, at: number, message: string): Wrong {
  return new Wrong(`line ${line(source, at)}: ${message}`);
}

function line(text: string, position: number): number {
  return text.slice(0, position).split("\n").length;
}
