// The page "try it": an editor, what the checker says, and the accesses of a line, in pictures.
import { cpp } from "@codemirror/lang-cpp";
import { syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, setDiagnostics } from "@codemirror/lint";
import { Prec } from "@codemirror/state";
import { classHighlighter } from "@lezer/highlight";
import { EditorView, basicSetup } from "codemirror";
import { keymap } from "@codemirror/view";
import type { Exercise } from "./exercise";
import type { Verdict } from "./judge";
import { picture } from "./picture";
import type { Site } from "./report";
import type { Reply } from "./worker";

interface Entry {
  id: string;
  group: string;
  title: string;
  text?: string; // what a puzzle asks for, as HTML
}

const PATIENCE = 30; // seconds without a word from the worker
const HERE = new URL(".", import.meta.url);

const root = document.getElementById("try")!;

/** Some browsers have no storage for pages that are opened as files, or in private windows. */
function stored(use: (storage: Storage, key: string) => string | null | void): string | null {
  try {
    return use(localStorage, `kernel-ladder ${entry.id}`) ?? null;
  } catch {
    return null;
  }
}

const choice = make("select", { "aria-label": "Kernel" }) as HTMLSelectElement;
const run = make("button", { type: "button", title: "Ctrl-Enter" }, "Run") as HTMLButtonElement;
const stop = make("button", { type: "button", hidden: "" }, "Stop") as HTMLButtonElement;
const reset = make("button", { type: "button" }, "Start over") as HTMLButtonElement;
const bar = make("progress", { max: "1", hidden: "" }) as HTMLProgressElement;
const status = make("span", { role: "status" });
const task = make("div", { class: "task" });
const holder = make("div", { class: "editor" });
const verdictBox = make("div", { class: "verdict", "aria-live": "polite" });

let exercise: Exercise & { verdict: Verdict };
let entry: Entry;
let worker: Worker | undefined;
let patience: ReturnType<typeof setTimeout> | undefined;

const editor = new EditorView({
  parent: holder,
  extensions: [
    Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => (start(), true) }])),
    basicSetup,
    cpp(),
    syntaxHighlighting(classHighlighter),
    EditorView.contentAttributes.of({ "aria-label": "The kernel's source" }),
    EditorView.updateListener.of(({ docChanged }) => docChanged && edited()),
  ],
});

function text(): string {
  return editor.state.doc.toString();
}

function edited(): void {
  if (!exercise) return;
  if (text() === exercise.source) stored((storage, key) => storage.removeItem(key));
  else stored((storage, key) => storage.setItem(key, text()));
}

function fill(source: string): void {
  editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: source } });
}

async function open(id: string, entries: Entry[]): Promise<void> {
  finish("");
  entry = entries.find((each) => each.id === id) ?? entries[0]!;
  choice.value = entry.id;
  const address = new URL(`exercises/${entry.id}.json`, HERE);
  const file = await fetch(address).catch(() => undefined);
  if (!file?.ok) return tell("This kernel could not be loaded: is there a connection? Choose it again.");
  exercise = await file.json();
  task.innerHTML = entry.text ?? "";
  const own = stored((storage, key) => storage.getItem(key));
  fill(own ?? exercise.source);
  if (own === null) show(exercise.verdict);
  else tell("This is your version. Run it, or start over.");
}

function tell(message: string): void {
  status.textContent = message;
}

function start(): void {
  if (text() === exercise.source) return show(exercise.verdict);
  if (typeof WebAssembly !== "object")
    return tell(
      "This browser has no WebAssembly, which the emulator needs. What is shown is the kernel as it was.",
    );
  verdictBox.replaceChildren();
  run.disabled = true;
  stop.hidden = false;
  tell("starting the compiler");
  if (!worker) {
    worker = new Worker(new URL("worker.js", HERE), { type: "module" });
    worker.addEventListener("message", ({ data }: MessageEvent<Reply>) => hear(data));
    worker.addEventListener("error", ({ message }) => fail(message || "the worker did not start"));
  }
  wait();
  worker.postMessage({ exercise, source: text() });
}

function wait(): void {
  clearTimeout(patience);
  const why = "a loop without an end, and without a barrier or an access?";
  patience = setTimeout(fail, 1000 * PATIENCE, `nothing has happened for ${PATIENCE} seconds: ${why}`);
}

function hear(reply: Reply): void {
  wait();
  if ("downloaded" in reply) {
    bar.hidden = reply.downloaded === 1;
    bar.value = reply.downloaded;
    tell(
      reply.downloaded < 1
        ? "downloading the compiler, once: 105 MB, about 30 compressed"
        : "starting the compiler",
    );
  } else if ("told" in reply) tell(reply.told);
  else if ("verdict" in reply) {
    finish("");
    show(reply.verdict);
  } else fail(reply.error);
}

function fail(message: string): void {
  worker?.terminate();
  worker = undefined;
  const offline = /fetch|network|load/i.test(message)
    ? "The compiler could not be loaded: is there a connection? "
    : "";
  const memory = /memory/i.test(message)
    ? "The browser has too little memory: close other tabs, or take a smaller kernel. "
    : "";
  finish(`${offline}${memory}${offline || memory ? "" : "Stopped: "}${message}`);
}

function finish(message: string): void {
  clearTimeout(patience);
  run.disabled = false;
  stop.hidden = bar.hidden = true;
  tell(message);
}

function show(verdict: Verdict): void {
  const mark = verdict.status === "passed" ? "✓" : "✗";
  const children: Node[] = [make("p", { class: verdict.status }, `${mark} ${verdict.message}`)];
  const others = verdict.problems.slice(1, 3).map(({ message }) => make("li", {}, message));
  if (others.length) children.push(make("ul", {}, ...others));
  for (const note of verdict.notes) children.push(make("p", { class: "said" }, note));
  if (verdict.sites.length) children.push(accesses(verdict));
  verdictBox.replaceChildren(...children);
  const { doc } = editor.state;
  const diagnostics: Diagnostic[] = verdict.problems.flatMap(({ line, other, message }) =>
    [...new Set([line, other])].flatMap((number) => {
      if (!number || number > doc.lines) return [];
      const { from, to } = doc.line(number);
      return [{ from, to, severity: "error" as const, message }];
    }),
  );
  editor.dispatch(setDiagnostics(editor.state, diagnostics));
}

/** The table of accesses, with a picture of the one that is chosen. */
function accesses(verdict: Verdict): HTMLElement {
  const box = make("div");
  const drawn = make("div", { class: "picture" });
  const table = make("table", { class: "accesses" });
  const head = ["line", "access", "requests", "sectors or wavefronts", "at least"];
  table.append(make("caption", {}, `Accesses of memory at ${verdict.label}`));
  table.append(make("tr", {}, ...head.map((name) => make("th", { scope: "col" }, name))));
  const draw = (site: Site) => {
    const same = ({ line, buffer, kind }: Site) =>
      line === site.line && buffer === site.buffer && kind === site.kind;
    const access = verdict.accesses.find((each) => same(each.site));
    if (access) drawn.replaceChildren(picture(access));
  };
  for (const site of verdict.sites) {
    const unit = site.space === "global" ? "sectors" : "wavefronts";
    const [count, least] = [site[unit], site[`ideal_${unit}`]];
    const button = make("button", { type: "button" }, `${site.kind} ${site.buffer}`);
    button.addEventListener("click", () => draw(site));
    const cells = [String(site.line), button, String(site.requests), `${count} ${unit}`, String(least)];
    const row = make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
    if (count > least) row.className = "more";
    table.append(row);
  }
  box.append(table, drawn);
  draw(verdict.sites[0]!);
  return box;
}

async function begin(): Promise<void> {
  const file = await fetch(new URL("exercises/index.json", HERE)).catch(() => undefined);
  if (!file?.ok) return;
  const entries: Entry[] = await file.json();
  for (const group of new Set(entries.map((each) => each.group))) {
    const members = entries.filter((each) => each.group === group);
    const options = members.map(({ id, title }) => make("option", { value: id }, title));
    choice.append(make("optgroup", { label: group }, ...options));
  }
  const controls = make("div", { class: "controls" }, choice, run, stop, reset, bar, status);
  root.replaceChildren(controls, task, holder, verdictBox);
  choice.addEventListener("change", () => (location.hash = choice.value));
  addEventListener("hashchange", () => open(location.hash.slice(1), entries));
  run.addEventListener("click", start);
  stop.addEventListener("click", () => fail("as you asked"));
  reset.addEventListener("click", () => {
    fill(exercise.source); // of which nothing is stored: see edited
    show(exercise.verdict);
  });
  await open(location.hash.slice(1), entries);
}

begin();
