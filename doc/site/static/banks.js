// One request of a warp to shared memory: the bank of each lane, and the wavefronts that it takes.

const BANKS = 32;

/** Where each lane reads, in bytes. The tile has 32 rows of `width` words of 4 bytes, a power of two,
 * and `padding` words after each row. A swizzle permutes the pieces of 16 bytes within a row: piece p
 * of row r lies at p ^ (r % pieces), and pieces beyond 8 are permuted in groups of 8. */
function offsetsOf({ bytes, pattern, width: given, padding, swizzle, column }) {
  const size = Number(bytes), words = size / 4, width = Number(given);
  const gap = Math.ceil(padding / words) * words; // keeps rows aligned
  const pieces = Math.min(8, width / 4), across = width / words;
  return Array.from({ length: 32 }, (_, lane) => {
    const row = pattern === "row" ? Math.floor(lane / across) : lane;
    const place = ((pattern === "row" ? lane : column) % across) * size;
    const piece = swizzle ? (place >> 4) ^ (row % pieces) : place >> 4;
    return row * (width + gap) * 4 + piece * 16 + (place % 16);
  });
}

/** For each wavefront and each bank, the lanes that are served; the rule of `wavefronts` in
 * ladder/core/show/pictures/banks.py. `ideal`: the least number of wavefronts for as many bytes. */
function wavefronts(bytes, offsets) {
  let together = bytes <= 4 ? 32 : bytes === 8 ? 16 : 8;
  const inPairs = [1, 2].some((bit) => offsets.every((offset, lane) => offsets[lane ^ bit] === offset));
  if (together < 32 && inPairs) together *= 2;
  const passes = [];
  let ideal = 0;
  for (let first = 0; first < 32; first += together) {
    const words = Array.from({ length: BANKS }, () => new Map());
    for (let lane = first; lane < first + together; lane++)
      for (let word = offsets[lane] >> 2; word <= (offsets[lane] + bytes - 1) >> 2; word++) {
        const bank = words[word % BANKS];
        bank.set(word, [...(bank.get(word) ?? []), lane]);
      }
    const served = words.map((bank) => [...bank.values()]);
    ideal += 1;
    for (let number = 0; number < Math.max(...served.map((lanes) => lanes.length)); number++)
      passes.push(served.map((lanes) => lanes[number] ?? []));
  }
  return { passes, ideal };
}

function drawBanks(values) {
  const { passes, ideal } = wavefronts(Number(values.bytes), offsetsOf(values));
  const table = make("table", { class: "matrix banks" });
  const head = make("tr", {}, make("th"));
  for (let bank = 0; bank < BANKS; bank++) head.append(make("th", {}, bank % 4 ? "" : String(bank)));
  table.append(head);
  passes.forEach((banks, number) => {
    const line = make("tr", {}, make("th", {}, String(number + 1)));
    banks.forEach((lanes, bank) => {
      const title = lanes.length ? `bank ${bank}: lane ${lanes.join(", ")}` : `bank ${bank}: idle`;
      const cell = make("td", { title }, lanes.length > 1 ? `${lanes[0]}+` : lanes.join());
      if (lanes.length) {
        cell.className = "mine";
        paint(cell, lanes[0]);
      }
      line.append(cell);
    });
    table.append(line);
  });
  const count = `${passes.length} wavefront${passes.length > 1 ? "s" : ""}; ${ideal} would be the least.`;
  return make("div", {}, make("div", { class: "said", role: "status" }, count), table);
}

explorer("banks", {
  pattern: ["lanes read", { column: "down a column: lane = row", row: "along the rows" }, "column"],
  bytes: ["bytes per lane", { 4: "4", 8: "8", 16: "16" }, 4],
  width: ["words in a row", { 8: "8", 16: "16", 32: "32", 64: "64" }, 32],
  padding: ["words of padding", 0, 8, 0],
  column: ["column", 0, 31, 0],
  swizzle: ["swizzle", false],
}, drawBanks);
