// A ring of stages over time: a producer warp copies tiles, consumer warpgroups multiply them.

/** The spans of work, as ladder/core/show/pictures/timeline.py has them: { row, kind, start, end }.
 *
 * The producer starts copy k once stage k % stages is free; a copy takes `copy` however many run. Each
 * consumer waits for the stage, lets the tensor cores multiply for `product`, waits for the result and
 * gives the stage back. The tensor cores serve one consumer at a time. */
function spansOf({ stages, copy, product, consumers, tiles = 12 }) {
  const spans = [], freed = [];
  const clock = Array(consumers).fill(0); // when each consumer goes on
  let producer = 0, busy = 0;
  const add = (row, kind, start, end) => end > start && spans.push({ row, kind, start, end });
  for (let k = 0; k < tiles; k++) {
    const free = k < stages ? 0 : freed[k - stages];
    add("producer", "wait", producer, free);
    producer = Math.max(producer, free);
    spans.push({ row: "producer", kind: "ask", start: producer, end: producer });
    const landed = producer + copy;
    add(`stage ${k % stages}`, "copy", producer, landed);
    for (let c = 0; c < consumers; c++) {
      const row = `consumer ${c}`, ready = Math.max(clock[c], landed);
      add(row, "wait", clock[c], ready);
      const start = Math.max(ready, busy);
      add(row, "queue", ready, start);
      busy = clock[c] = start + product;
      add(row, "product", start, busy);
    }
    freed.push(busy);
    add(`stage ${k % stages}`, "held", landed, busy);
  }
  return spans;
}

function drawPipeline(values) {
  const spans = spansOf(values);
  spans.push(...spans.filter(({ kind }) => kind === "product").map((span) => ({ ...span, row: "tensor cores" })));
  const order = ["producer", "stage", "consumer", "tensor"];
  const rank = (row) => order.findIndex((name) => row.startsWith(name));
  const rows = [...new Set(["producer", ...spans.map(({ row }) => row)])];
  rows.sort((one, other) => rank(one) - rank(other) || one.localeCompare(other));
  const end = Math.max(...spans.map((span) => span.end)), scale = 560 / end, left = 96;
  const svg = make("svg", { viewBox: `0 0 ${left + 564} ${rows.length * 22 + 4}`, class: "timeline", role: "img" });
  rows.forEach((row, y) => {
    svg.append(make("text", { x: left - 8, y: 22 * y + 14, "text-anchor": "end" }, row));
    svg.append(make("rect", { x: left, y: 22 * y, width: 560, height: 18, class: "idle" }));
    const shown = spans.filter((span) => span.row === row);
    shown.sort((one, other) => (one.kind === "ask") - (other.kind === "ask")); // starts of copies on top
    for (const { kind, start, end } of shown) {
      const width = kind === "ask" ? 3 : (end - start) * scale; // the start of a copy
      const place = { x: left + start * scale, y: 22 * y, width, height: 18 };
      svg.append(make("rect", { ...place, class: kind }, make("title", {}, `${kind}: ${start} to ${end}`)));
    }
  });
  const busy = spans.filter(({ row }) => row === "tensor cores").reduce((sum, { start, end }) => sum + end - start, 0);
  const legend = make("div", { class: "legend" });
  for (const [kind, text] of Object.entries({
    copy: "copy (thin bar: its start)", held: "landed, in use", product: "products", queue: "waits for the tensor cores", wait: "waits at an mbarrier",
  })) legend.append(make("span", {}, make("span", { class: `key ${kind}` }), text), " ");
  const share = Math.round((100 * busy) / end);
  const said = `12 tiles take ${end} time units. The tensor cores work in ${share}% of the time.`;
  return make("div", {}, make("div", { class: "said", role: "status" }, said), svg, legend);
}

explorer("pipeline", {
  stages: ["stages", 1, 8, 2],
  copy: ["copy takes", 1, 20, 6],
  product: ["products of a consumer take", 1, 8, 2],
  consumers: ["consumer warpgroups", 1, 2, 1],
}, drawPipeline);
