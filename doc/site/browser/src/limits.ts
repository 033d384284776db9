// The limits of a puzzle: the measures of ladder/core/show/limits.py that the puzzles use.
import type { Exercise } from "./exercise";
import type { Access, Site } from "./report";
import type { Seen } from "./run";
import { withoutComments } from "./source";

type Measure = (sites: Site[], accesses: Access[]) => number;

function total(count: (site: Site) => number): Measure {
  return (sites) => sites.reduce((sum, site) => sum + count(site), 0);
}

const MEASURES: Record<string, Measure> = {
  sectors: total(({ sectors }) => sectors),
  requests: total(({ requests }) => requests),
  wavefronts: total(({ wavefronts }) => wavefronts),
  "extra wavefronts": total((site) => site.wavefronts - site.ideal_wavefronts),
  atomics: total(({ kind, lanes }) => (kind === "atomic" ? lanes : 0)),
  "requests per warp": (_, accesses) => {
    const warps = new Map<string, number>();
    for (const { site, block, warp } of accesses) {
      const key = `${block} ${warp}`;
      if (site.space === "global") warps.set(key, (warps.get(key) ?? 0) + 1);
    }
    return Math.max(0, ...warps.values());
  },
};

/** A sentence on each limit, in two lists: those that the kernel breaks, and those that it keeps. */
export function judge(
  { limits, cases, lessons }: Exercise,
  source: string,
  sites: Site[],
  { accesses, marks }: Pick<Seen, "accesses" | "marks">,
): [string[], string[]] {
  const [broken, kept]: [string[], string[]] = [[], []];
  const lines = withoutComments(source).split("\n");
  for (const [name, bound, limit] of limits.bounds) {
    const [what, array] = name.split(" of ") as [string, string?];
    const counts = ({ buffer }: Site) => !array || buffer === array;
    const mine = sites.filter(counts);
    const measure = (): number => {
      const word = new RegExp(`\\b${array}\\b`); // of "uses": so many lines have it
      if (what === "uses") return lines.filter((line) => word.test(line)).length;
      if (what === "barriers" || what === "calls") return marks;
      const found = MEASURES[what];
      if (!found) throw new Error(`nothing counts ${what}`);
      return found(mine, accesses.filter(({ site }) => counts(site)));
    };
    const count = measure();
    const most = bound === "many" ? "the limit is" : "at least";
    const text = `${name}: ${count} at ${cases[limits.case]!.label}; ${most} ${limit}`;
    const wasted = mine.some((site) => site.sectors > site.ideal_sectors);
    const alone = mine.reduce((sum, site) => sum + site.sectors - 2 * site.requests, 0) < 0;
    const coalesce = what === "sectors" && (wasted || alone) ? lessons.coalesce! : "";
    const conflicts = total((site) => site.wavefronts - site.ideal_wavefronts)(mine, []);
    const banks = bound === "many" && what === "wavefronts" && count - conflicts <= limit;
    const lesson = lessons[banks ? "extra wavefronts" : what] ?? "";
    const why = `The result is right, but the kernel takes too ${bound} ${text}. ${lesson} ${coalesce}`;
    if (bound === "many" ? count > limit : count < limit) broken.push(why.trim());
    else kept.push(text);
  }
  return [broken, kept];
}
