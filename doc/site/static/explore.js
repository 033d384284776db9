// Shared by the explorers: elements, controls, and the colours of lanes.

/** A new element: make("td", { title: "lane 3" }, "3"). */
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "rect", "text", "g", "title"].includes(tag);
  const element = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Gives a cell the colour of lane i, as ladder/core/show/pictures/drawing.py has it: neighbours differ. */
function paint(cell, i) {
  const hue = (306 * i) / 32, lightness = [0.62, 0.78][i % 2];
  const channel = (k) => {  // of red, green and blue: 0, 8 and 4 (CSS Color 4, "HSL to RGB")
    const place = (k + hue / 30) % 12, chroma = 0.75 * (1 - lightness);
    return lightness - chroma * Math.max(-1, Math.min(place - 3, 9 - place, 1));
  };
  const light = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const [red, green, blue] = [0, 8, 4].map(channel);
  const luminance = 0.2126 * light(red) + 0.7152 * light(green) + 0.0722 * light(blue);
  const colour = [red, green, blue].map((c) => Math.round(255 * c)).join(" ");
  cell.style.setProperty("--lane", `rgb(${colour})`);
  cell.style.setProperty("--on-lane", luminance > 0.18 ? "#010101" : "#fefefe");
}

/**
 * Fills an explorer: a control for each setting, and under them what `draw(values)` returns.
 *
 * settings: { name: [label, least, most, value] } for a slider, [label, true or false] for a box to
 * tick, [label, { value: text, ... }, value] for a choice. `draw` also gets a function that sets
 * values and draws anew.
 */
function explorer(id, settings, draw) {
  const root = document.getElementById(id);
  if (!root) return;
  const values = {}, inputs = {}, shown = {};
  const controls = make("div", { class: "controls" }), picture = make("div", { class: "picture" });
  const redraw = () => {
    for (const name in shown) shown[name].textContent = values[name];
    picture.replaceChildren(draw(values, set));
  };
  const set = (changes) => {
    for (const [name, value] of Object.entries(changes)) {
      values[name] = value;
      inputs[name][typeof value === "boolean" ? "checked" : "value"] = value;
    }
    redraw();
  };
  for (const [name, [label, ...kind]] of Object.entries(settings)) {
    const parts = [label];
    if (typeof kind[0] === "boolean") {
      inputs[name] = make("input", { type: "checkbox", name });
      inputs[name].checked = values[name] = kind[0];
    } else if (typeof kind[0] === "object") {
      const options = Object.entries(kind[0]).map(([value, text]) => make("option", { value }, text));
      inputs[name] = make("select", { name }, ...options);
      values[name] = inputs[name].value = kind[1];
    } else {
      const [min, max, value] = kind;
      inputs[name] = make("input", { type: "range", name, min, max, value });
      values[name] = value;
      shown[name] = make("output");
      parts.push(shown[name]);
    }
    inputs[name].addEventListener("input", ({ target }) => {
      values[name] =
        target.type === "checkbox" ? target.checked
        : target.type === "range" ? Number(target.value)
        : target.value;
      redraw();
    });
    controls.append(make("label", {}, ...parts, inputs[name]));
  }
  root.replaceChildren(controls, picture);
  redraw();
}
