// The graph: modules unfold in place; it is moved and zoomed; a click or Enter tells all that is known of a node.
const STEP = 1.3;
const READABLE = 0.45;
const LARGEST = 4;
const MOST_FOUND = 12;
const MOST_SHOWN = 60;
const SHADES = 8;
const CLICK = 5;

// Where the graph is in its frame.  It cannot be moved out of it.
class Sheet {
  constructor(frame) {
    this.frame = frame;
    this.paper = shape("g");
    this.svg = shape("svg", { "aria-hidden": "false" }, [this.paper]);
    frame.append(this.svg);
    [this.x, this.y, this.scale, this.size] = [0, 0, 1, [1, 1]];
  }

  put({ size, group }) {
    this.size = size;
    this.paper.replaceChildren(group);
    this.move(0, 0);
  }

  get whole() {
    return Math.min(1, this.frame.clientWidth / this.size[0], this.frame.clientHeight / this.size[1]);
  }

  // Return whether it moved: at its end it lets the page scroll.
  move(dx, dy) {
    const [x, y] = [this.x, this.y];
    this.x = this.bounded(this.x + dx, this.size[0], this.frame.clientWidth);
    this.y = this.bounded(this.y + dy, this.size[1], this.frame.clientHeight);
    this.paper.setAttribute("transform", `translate(${this.x} ${this.y}) scale(${this.scale})`);
    return Math.abs(this.x - x) + Math.abs(this.y - y) > 0.01;
  }

  bounded(place, size, room) {
    const [one, other] = [0, room - size * this.scale];
    return Math.min(Math.max(place, Math.min(one, other)), Math.max(one, other));
  }

  zoom(factor, [atX, atY] = [this.frame.clientWidth / 2, this.frame.clientHeight / 2]) {
    const scale = Math.min(Math.max(this.scale * factor, Math.min(this.whole, READABLE)), LARGEST);
    const grown = scale / this.scale;
    this.scale = scale;
    this.move((atX - this.x) * (1 - grown), (atY - this.y) * (1 - grown));
  }

  fit(scale) {
    this.scale = scale;
    this.x = (this.frame.clientWidth - this.size[0] * scale) / 2;
    this.move(0, 0);
  }

  // The data flow upward: a fitted graph begins at its end, as text would.
  fitWidth(least) {
    this.y = 0;
    this.fit(Math.max(Math.min(1, this.frame.clientWidth / this.size[0]), least));
  }

  box(element) {
    const [frame, box] = [this.frame.getBoundingClientRect(), element.getBoundingClientRect()];
    return { left: box.left - frame.left, top: box.top - frame.top, width: box.width, height: box.height };
  }

  centre(element) {
    const box = this.box(element);
    const [width, height] = [this.frame.clientWidth, this.frame.clientHeight];
    const [right, bottom] = [box.left + box.width, box.top + box.height];
    if (box.left >= 0 && box.top >= 0 && right <= width && bottom <= height) return;
    this.move(width / 2 - box.left - box.width / 2, box.height > height ? -box.top : height / 2 - box.top - box.height / 2);
  }
}

class Graph {
  constructor(frame, data, kinds) {
    Object.assign(this, { frame, data, kinds, chosen: "", hits: [], numbers: new Map() });
    this.sheet = new Sheet(frame);
    this.panel = document.getElementById("panel");
    this.choices = Object.fromEntries(["view", "passes", "colour"].map((name) => [name, document.getElementById(name)]));
    this.rowOf = new Map();
    for (const [row, layer] of Object.entries(data.layers).reverse()) layer.nodes.forEach((id) => this.rowOf.set(id, row));
    this.moduleOf = new Map(Object.entries(data.modules).reverse().map(([id, told]) => [told.nodes[1], id]));
    this.listen();
    this.use("unrolled");
  }

  // Unrolled or rolled: each has its own folds.
  use(kind) {
    this.folds = new Folds(this.kinds[kind]);
    const { levels } = this.folds;
    const options = levels.map((count, level) => make("option", { value: String(level), textContent: this.levelName(level, count) }));
    this.choices.view.replaceChildren(...options, make("option", { value: "own", textContent: "As unfolded by hand", hidden: true }));
    const readable = levels.findLastIndex((count) => count <= MOST_SHOWN);
    this.colour();
    this.show(Math.max(0, readable));
  }

  levelName(level, count) {
    const nodes = `${count.toLocaleString("en")} ${count === 1 ? "node" : "nodes"}`;
    if (level === this.folds.levels.length - 1) return `All operations: ${nodes}`;
    return level ? `Level ${level} unfolded: ${nodes}` : `All folded: ${nodes}`;
  }

  show(level) {
    this.folds.openLevels(level);
    this.choices.view.value = String(level);
    this.render();
    this.sheet.fitWidth(READABLE);
    this.frame.dataset.shown = String(level);
  }

  render() {
    const focused = this.frame.contains(document.activeElement) && document.activeElement.id;
    this.sheet.put(this.folds.draw());
    this.mark();
    this.paint();
    if (focused) this.drawn(focused)?.focus({ preventScroll: true });
  }

  listen() {
    const { frame, choices } = this;
    frame.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    frame.addEventListener("keydown", (event) => this.key(event));
    frame.addEventListener("click", (event) => this.click(event));
    frame.addEventListener("dblclick", (event) => this.toggle(this.nodeAt(event)));
    frame.addEventListener("focusin", (event) => event.target !== frame && this.sheet.centre(event.target));
    new ResizeObserver(() => this.sheet.move(0, 0)).observe(frame);
    this.drag();
    this.pinch();
    choices.view.addEventListener("change", () => this.show(Number(choices.view.value)));
    choices.passes?.addEventListener("change", () => this.use(choices.passes.value));
    choices.colour.addEventListener("change", () => { this.colour(); this.paint(); });
    for (const button of document.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => this.act(button.dataset.zoom));
    }
  }

  drag() {
    this.frame.addEventListener("pointerdown", (event) => {
      this.pressed = event.pointerType === "touch" || event.button ? null : { x: event.clientX, y: event.clientY, far: 0 };
    });
    addEventListener("pointermove", (event) => {
      if (!this.pressed || !event.buttons) return;
      const [dx, dy] = [event.clientX - this.pressed.x, event.clientY - this.pressed.y];
      this.pressed = { x: event.clientX, y: event.clientY, far: this.pressed.far + Math.hypot(dx, dy), done: false };
      this.sheet.move(dx, dy);
    });
  }

  // One finger scrolls the page, two move and zoom the graph.
  pinch() {
    const fingers = ({ touches: [one, other] }) => ({
      x: (one.clientX + other.clientX) / 2, y: (one.clientY + other.clientY) / 2,
      apart: Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY),
    });
    let before = null;
    const follow = (event) => {
      if (event.touches.length !== 2 || !event.cancelable) return;
      event.preventDefault();
      const now = fingers(event);
      const frame = this.frame.getBoundingClientRect();
      if (before) {
        this.sheet.move(now.x - before.x, now.y - before.y);
        this.sheet.zoom(now.apart / before.apart, [now.x - frame.left, now.y - frame.top]);
      }
      before = now;
    };
    this.frame.addEventListener("touchstart", follow, { passive: false });
    this.frame.addEventListener("touchmove", follow, { passive: false });
    this.frame.addEventListener("touchend", () => { before = null; });
  }

  act(what) {
    if (what === "in") this.sheet.zoom(STEP);
    else if (what === "out") this.sheet.zoom(1 / STEP);
    else if (what === "width") this.sheet.fitWidth(0);
    else if (what === "whole") this.sheet.fit(this.sheet.whole);
    else if (what === "inputs") this.go("input");
    else if (what === "outputs") this.go("output");
    else if (what === "fold") this.toggle(this.folds.around(this.chosen)[0] ?? "");
  }

  go(kind) {
    const id = [...this.folds.classOf].find(([, classes]) => classes.split(" ").includes(kind))?.[0];
    if (!id) return;
    this.reveal(id);
    this.sheet.centre(this.drawn(id));
    this.drawn(id).focus({ preventScroll: true });
  }

  // The wheel scrolls the page, unless the graph has the focus, as after a click, or Ctrl is held.
  wheel(event) {
    const zooms = event.ctrlKey || event.metaKey;
    if (!zooms && !this.frame.contains(document.activeElement)) return;
    const frame = this.frame.getBoundingClientRect();
    if (zooms) this.sheet.zoom(event.deltaY < 0 ? STEP : 1 / STEP, [event.clientX - frame.left, event.clientY - frame.top]);
    if (zooms || this.sheet.move(-event.deltaX, -event.deltaY)) event.preventDefault();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const pans = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] };
    const acts = { "+": "in", "=": "in", "-": "out", 0: "width", Home: "outputs", End: "inputs", Backspace: "fold" };
    const id = this.nodeAt(event);
    if (event.key in pans) this.sheet.move(...pans[event.key]);
    else if (event.key in acts) this.act(acts[event.key]);
    else if (event.key === "Enter" && id) this.select(this.nameOf(id));
    else if (event.key === " " && id) this.toggle(id);
    else return;
    event.preventDefault();
  }

  nodeAt(event) {
    return event.target.closest?.("g.node, g.cluster")?.id ?? "";
  }

  click(event) {
    const id = this.nodeAt(event);
    const tensor = event.target.closest?.(".port")?.dataset.tensor;
    if ((this.pressed?.far ?? 0) > CLICK) return;
    this.frame.focus({ preventScroll: true });
    if (event.target.closest?.(".toggle")) this.toggle(id);
    else if (tensor) this.select(this.nameOf(tensor));
    else if (id) this.select(this.nameOf(id));
  }

  // Fold or unfold a module, and keep it where it is on the screen.
  toggle(id) {
    if (!this.folds.all.has(id) || !id) return;
    const before = this.drawn(id) && this.sheet.box(this.drawn(id));
    if (!this.folds.open.delete(id)) this.folds.open.add(id);
    this.changed();
    const after = this.sheet.box(this.drawn(id));
    if (before) this.sheet.move(before.left - after.left, before.top - after.top);
    this.sheet.centre(this.drawn(id));
    this.drawn(id).focus({ preventScroll: true });
  }

  changed() {
    this.choices.view.value = "own";
    this.render();
  }

  reveal(id) {
    const folded = this.folds.around(id).filter((outer) => !this.folds.open.has(outer));
    folded.forEach((outer) => this.folds.open.add(outer));
    if (folded.length) this.changed();
  }

  // A row's or module's id, by that of its node.
  nameOf(id) {
    return this.rowOf.get(id) ?? (this.data.modules[id] ? id : this.moduleOf.get(id) ?? id);
  }

  toldOf(id) {
    const row = id in this.data.layers ? id : Object.keys(this.data.layers).find((name) => name.startsWith(`${id}.`));
    return this.data.layers[row] ?? this.data.modules[id];
  }

  nodeOf(id) {
    return (this.toldOf(id)?.nodes ?? [id]).find((node) => this.folds.parentOf.has(node));
  }

  // By the id of a row or of a module's node.  What is folded opens.
  select(id) {
    if (id !== wanted()) history.replaceState(null, "", `#${encodeURIComponent(id)}`);
    const node = this.nodeOf(id);
    this.chosen = node ?? "";
    if (node) this.reveal(node);
    this.mark();
    if (this.sheet.scale < READABLE) this.sheet.zoom(READABLE / this.sheet.scale);
    if (node) this.sheet.centre(this.drawn(node));
    this.tell(id, this.toldOf(id) ?? this.section(node));
  }

  section(id) {
    const count = this.folds.all.has(id) && this.folds.leaves(id).length;
    return count ? { label: this.folds.all.get(id).title[0], facts: [["operations", count.toLocaleString("en")]] } : null;
  }

  drawn(id) {
    return this.frame.querySelector(`#${CSS.escape(id)}`);
  }

  mark() {
    for (const other of this.frame.querySelectorAll(".chosen, .match, .holds")) other.classList.remove("chosen", "match", "holds");
    for (const id of this.hits) {
      const shown = this.folds.shownFor(id);
      this.drawn(shown)?.classList.add(shown === id ? "match" : "holds");
    }
    if (this.chosen) this.drawn(this.folds.shownFor(this.chosen))?.classList.add("chosen");
  }

  // A number of each operation, by which it is coloured; a module's is the sum of those inside it.
  colour() {
    const kind = this.choices.colour.value;
    this.numbers = new Map();
    for (const layer of Object.values(this.data.layers)) {
      const node = layer.nodes.find((id) => this.folds.parentOf.has(id));
      const value = layer.numbers[kind];
      if (!node || !value) continue;
      for (const id of [node, ...this.folds.around(node)]) this.numbers.set(id, (this.numbers.get(id) ?? 0) + value);
    }
  }

  paint() {
    const kind = this.choices.colour.value;
    this.frame.classList.toggle("shaded", kind !== "kind");
    const nodes = [...this.frame.querySelectorAll("g.node")];
    const shown = nodes.map((node) => this.numbers.get(node.id)).filter(Boolean);
    const [low, high] = [shown.reduce((a, b) => Math.min(a, b), Infinity), shown.reduce((a, b) => Math.max(a, b), 0)];
    for (const node of nodes) {
      node.classList.remove(...[...node.classList].filter((name) => name.startsWith("shade-") || name === "differs"));
      if (kind === "difference") node.classList.toggle("differs", this.numbers.has(node.id));
      else if (kind !== "kind") node.classList.add(`shade-${this.shade(this.numbers.get(node.id) ?? 0, low, high)}`);
    }
    const range = shown.length ? `${UNITS_OF[kind](low)} to ${UNITS_OF[kind](high)}, logarithmic` : "";
    document.getElementById("scale").value = kind === "difference" ? "marked: differs from the baseline" : range;
  }

  shade(value, low, high) {
    const share = value > low ? Math.log(value / low) / Math.log(high / low) : 0;
    return Math.min(SHADES - 1, Math.floor(SHADES * share));
  }

  tell(id, told) {
    if (!told) return;
    const facts = told.facts.flatMap(([name, text]) => [make("dt", { textContent: name }), make("dd", { textContent: text })]);
    const parts = [make("h3", { textContent: told.label, tabIndex: -1 }), make("dl", { className: "pairs" }, facts)];
    if (told.histogram) parts.push(this.histogram(...told.histogram));
    if (told.picture) parts.push(this.picture(told.picture, told.label));
    if (told.code) parts.push(make("pre", { textContent: told.code, tabIndex: 0 }));
    const node = this.nodeOf(id);
    if (this.folds.all.has(node)) parts.push(this.button("Fold or unfold", () => this.toggle(node)));
    if (told.from?.length) parts.push(this.links("from", told.from));
    if (told.to?.length) parts.push(this.links("to", told.to));
    if (tableWith(id)) {
      parts.push(make("p", {}, [make("a", { href: `#${id}`, textContent: "Row in the table" })]));
    }
    this.panel.replaceChildren(...parts);
  }

  histogram(low, high, counts) {
    const most = Math.max(...counts);
    const bars = counts.map((count, index) => shape("rect", { x: 10 * index, y: 60 - (60 * count) / most, width: 9, height: (60 * count) / most }));
    const total = counts.reduce((sum, count) => sum + count, 0);
    const label = `Histogram of ${total.toLocaleString("en")} values from ${low} to ${high}`;
    const picture = shape("svg", { viewBox: `0 0 ${10 * counts.length} 60`, role: "img", "aria-label": label, preserveAspectRatio: "none" }, bars);
    const ends = make("p", { className: "ends" }, [make("span", { textContent: low }), make("span", { textContent: high })]);
    return make("div", { className: "histogram" }, [picture, ends]);
  }

  picture(packed, label) {
    const [, height, width, pixels] = packed.match(/^(\d+)x(\d+):(.*)$/);
    const canvas = make("canvas", { className: "picture", width: Number(width), height: Number(height), role: "img" });
    canvas.setAttribute("aria-label", `Picture of ${label}: its first example, dark where it is least`);
    const image = new ImageData(canvas.width, canvas.height);
    Array.from(atob(pixels), (gray, place) => image.data.set([gray.charCodeAt(), gray.charCodeAt(), gray.charCodeAt(), 255], 4 * place));
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  button(text, action) {
    const button = make("button", { type: "button", textContent: text });
    button.addEventListener("click", action);
    return button;
  }

  links(word, targets) {
    const buttons = targets.map(([label, id]) => this.button(label, () => this.select(id)));
    return make("p", { className: "links" }, [make("span", { textContent: `${word} ` }), ...buttons]);
  }
}

function search(graph) {
  const [field, list] = [document.getElementById("find"), document.getElementById("found")];
  const entries = [
    ...Object.entries(graph.data.layers).map(([id, layer]) => [id, layer.label, layer.facts.map((fact) => fact[1])]),
    ...Object.entries(graph.data.modules).map(([id, module]) => [id, `@${module.label}`, module.facts.map((fact) => fact[1])]),
  ].map(([id, label, facts]) => ({ id, label, text: [label, ...facts].join("\n").toLowerCase() }));
  const find = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = words.length ? entries.filter((entry) => words.every((word) => entry.text.includes(word))) : [];
    hits.sort((a, b) => rank(a, words) - rank(b, words));
    const buttons = hits.slice(0, MOST_FOUND).map((hit) => make("li", {}, [graph.button(hit.label, () => graph.select(hit.id))]));
    list.replaceChildren(...buttons);
    document.getElementById("num-found").value = words.length ? `${hits.length} found` : "";
    graph.hits = hits.map((hit) => graph.nodeOf(hit.id)).filter(Boolean);
    graph.mark();
    return hits;
  };
  field.addEventListener("input", find);
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    const [first] = find();
    if (first) graph.select(first.id);
  });
}

// Exact names first, then names that hold all words, then the rest; equal ones keep their order.
function rank(entry, words) {
  const label = entry.label.toLowerCase();
  if (label.replace("@", "") === words.join(" ").replace("@", "")) return 0;
  return words.every((word) => label.includes(word)) ? 1 : 2;
}

const wanted = () => decodeURIComponent(location.hash.slice(1));

async function startGraph(frame) {
  const [data, kinds] = await Promise.all([unpack("details"), unpack("folds")]);
  const graph = new Graph(frame, data, kinds);
  search(graph);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-node]");
    if (!link) return;
    event.preventDefault();
    frame.scrollIntoView({ block: "center" });
    graph.select(link.dataset.node);
  });
  document.addEventListener("choose", (event) => graph.select(event.detail));
  const follow = () => wanted() && (graph.toldOf(wanted()) || graph.folds.parentOf.has(wanted())) && graph.select(wanted());
  addEventListener("hashchange", follow);
  follow();
}

document.querySelectorAll(".drawing").forEach(startGraph);
