// What a warp's first request touches: the 32-byte sectors of global memory, or the banks of shared
// memory, with the lanes in them. The colours are those of doc/site/static/explore.js.
import type { Access } from "./report";

const SECTOR = 32;
const WORD = 4;
const BANKS = 32;
const MOST_ROWS = 40;

/** A table: a row is a sector or a pass over the banks, a cell is a word, its number a lane. */
export function picture({ site, block, warp, lanes, offsets }: Access): HTMLElement {
  const shared = site.space === "shared";
  const words = shared ? BANKS : SECTOR / WORD;
  const owners = new Map<number, number[]>(); // lanes by word
  lanes.forEach((lane, i) => {
    for (let byte = 0; byte < site.bytes; byte += WORD) {
      const word = Math.floor((offsets[i]! + byte) / WORD);
      owners.set(word, [...(owners.get(word) ?? []), lane]);
    }
  });
  const rows = [...new Set([...owners.keys()].map((word) => Math.floor(word / words)))].sort((a, b) => a - b);
  const table = make("table", { class: "matrix" });
  const what = shared ? "rows of 32 banks" : "sectors";
  const shown = rows.length > MOST_ROWS ? `; the first ${MOST_ROWS} are shown` : "";
  const times = `${site.kind} of ${site.buffer} in line ${site.line}, by warp ${warp} of block ${block.join(", ")}`;
  table.append(make("caption", {}, `${times}: ${rows.length} ${what}${shown}`));
  for (const row of rows.slice(0, MOST_ROWS)) {
    const line = make("tr");
    line.append(make("th", { scope: "row" }, `byte ${row * words * WORD}`));
    for (let column = 0; column < words; column++) {
      const [first, ...others] = owners.get(row * words + column) ?? [];
      const cell = make("td");
      if (first !== undefined) {
        cell.textContent = others.length ? `${first}+` : String(first);
        cell.title = `lane ${[first, ...others].join(", ")}`;
        cell.className = "mine";
        paint(cell, first);
      }
      line.append(cell);
    }
    table.append(line);
  }
  return table;
}
