// Which lane holds which element of mma.sync m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16").

/** The elements of one lane: of A and B [row, column, register], two neighbours in a register; of D
 * one in each. `group` is what PTX calls groupID, `place` threadID_in_group. */
function fragmentsOf(lane) {
  const group = lane >> 2, place = lane % 4;
  const a = [], b = [], d = [];
  for (let i = 0; i < 8; i++) {
    const register = i >> 1;
    a.push([group + 8 * (register % 2), 2 * place + (i % 2) + 8 * (register >> 1), register]);
  }
  for (let i = 0; i < 4; i++) {
    b.push([2 * place + (i % 2) + 8 * (i >> 1), group, i >> 1]);
    d.push([group + 8 * (i >> 1), 2 * place + (i % 2), i]);
  }
  return { a, b, d };
}

function drawFragments({ lane }, set) {
  const shape = { a: ["A: rows × k", 16, 16], b: ["B: k × columns", 16, 8], d: ["D: rows × columns", 16, 8] };
  const box = make("div", { class: "matrices" });
  for (const [name, [title, rows, columns]] of Object.entries(shape)) {
    const owner = Array.from({ length: rows }, () => Array(columns));
    for (let other = 0; other < 32; other++)
      for (const [row, column, register] of fragmentsOf(other)[name]) owner[row][column] = [other, register];
    const table = make("table", { class: "matrix" }, make("caption", {}, title));
    for (let row = 0; row < rows; row++) {
      const line = make("tr");
      for (let column = 0; column < columns; column++) {
        const [other, register] = owner[row][column], mine = other === lane;
        const title = `(${row}, ${column}): lane ${other}, ${name}${register}`;
        const cell = make("td", { title }, mine ? `${name}${register}` : String(other));
        if (mine) cell.className = "mine";
        paint(cell, other);
        cell.addEventListener("pointerover", () => other !== lane && set({ lane: other }));
        line.append(cell);
      }
      table.append(line);
    }
    box.append(table);
  }
  const places = (name) => fragmentsOf(lane)[name].map(([row, column]) => `(${row}, ${column})`).join(" ");
  const said = ["a", "b", "d"].map((name) => make("div", {}, `${name.toUpperCase()}: ${places(name)}`));
  const sum = `Lane ${lane} (group ${lane >> 2} = lane / 4, place ${lane % 4} = lane % 4) holds`;
  return make("div", {}, make("div", { class: "said", role: "status" }, sum, ...said), box);
}

explorer("fragments", { lane: ["lane", 0, 31, 5] }, drawFragments);
