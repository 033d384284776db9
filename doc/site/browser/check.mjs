// The parts of the checker without a browser, for the site's build and its tests:
//     node node.mjs check SITE LIST     a verdict a line, for [{exercise: file, source: text or absent}]
//     node node.mjs sources LIST        the C++ of each of {includes, files: [{path, source}]}
//     node node.mjs plans LIST          the plan of each of [{source, names}]
// SITE: the folder that build.mjs has written; LIST: a JSON file.
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { fetchCompiler } from "./src/compile";
import { plan } from "./src/header";
import { check, emulatorOf } from "./src/judge";
import { prepare } from "./src/source";

export async function checkAll(site, jobs, told) {
  const read = (name) => fs.readFileSync(path.join(site, name));
  await fetchCompiler(() => {});
  const emulator = await emulatorOf(read("runtime.wasm"), JSON.parse(read("headers.json").toString()));
  for (const [index, { exercise, source }] of jobs.entries()) {
    const one = JSON.parse(fs.readFileSync(exercise, "utf8"));
    told(await check(one, source ?? one.source, emulator), index);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [what, ...files] = process.argv.slice(2);
  const list = JSON.parse(fs.readFileSync(files.at(-1), "utf8"));
  const print = (result) => console.log(JSON.stringify(result));
  if (what === "sources")
    for (const { path, source } of list.files) print(prepare(path, source, list.includes));
  else if (what === "plans") for (const { source, names } of list) print(plan(source, names));
  else await checkAll(files[0], list, ({ accesses: _, sites: __, ...verdict }) => print(verdict));
}
