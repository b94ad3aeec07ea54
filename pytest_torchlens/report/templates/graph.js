// The graph: one drawing at a time, zoomed and panned; a click tells all that is known of a node.
const STEP = 1.3;
const READABLE = 0.45;
const MOST_FOUND = 12;
const CLICK = 5;

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const packed = (id) => inflate(document.getElementById(id).textContent);

// Panzoom moves what it shows in the next frame.
const settled = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));

function make(tag, properties = {}, children = []) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

class Graph {
  constructor(frame, data) {
    this.frame = frame;
    this.data = data;
    this.sheet = frame.querySelector(".sheet");
    this.panel = document.getElementById("panel");
    this.choice = document.getElementById("view");
    this.panzoom = Panzoom(this.sheet, {
      canvas: true, minScale: 0.02, maxScale: 6, step: 0.3, origin: "0 0", handleStartEvent: (event) => this.start(event),
    });
    this.listen();
  }

  get views() {
    return [...this.choice.options];
  }

  has(view) {
    return this.views.some((option) => option.value === view);
  }

  start(event) {
    this.pressed = { x: event.clientX, y: event.clientY };
  }

  listen() {
    const frame = this.frame;
    frame.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    frame.addEventListener("keydown", (event) => this.key(event));
    frame.addEventListener("click", (event) => this.click(event));
    frame.addEventListener("dblclick", (event) => this.open(this.nodeAt(event)));
    this.choice.addEventListener("change", () => this.show(this.choice.value));
    for (const button of document.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => this.act(button.dataset.zoom));
    }
  }

  async show(key) {
    const view = this.views.find((option) => option.value === key);
    this.sheet.innerHTML = await packed(`view-${key}`);
    this.choice.value = key;
    this.size = { width: Number(view.dataset.width), height: Number(view.dataset.height) };
    const svg = this.sheet.firstElementChild;
    svg.style.width = this.sheet.style.width = `${this.size.width}px`;
    svg.style.height = this.sheet.style.height = `${this.size.height}px`;
    this.fit(READABLE);
    await settled();
    document.getElementById("up").disabled = !key.startsWith("module-");
    this.frame.dataset.shown = key;
  }

  fit(least) {
    const width = Math.min(1, this.frame.clientWidth / this.size.width);
    const scale = Math.max(width, least);
    this.panzoom.zoom(scale, { animate: false, force: true });
    this.panzoom.pan(Math.max(0, (this.frame.clientWidth / scale - this.size.width) / 2), 0, { animate: false, force: true });
  }

  act(what) {
    if (what === "in") this.panzoom.zoomIn();
    else if (what === "out") this.panzoom.zoomOut();
    else if (what === "width") this.fit(0);
    else if (what === "whole") this.whole();
    else if (what === "inputs") this.centre(this.sheet.querySelector(".node.input"));
    else if (what === "outputs") this.centre(this.sheet.querySelector(".node.output"));
    else if (what === "up") this.up();
  }

  whole() {
    const scale = Math.min(1, this.frame.clientWidth / this.size.width, this.frame.clientHeight / this.size.height);
    this.panzoom.zoom(scale, { animate: false, force: true });
    this.panzoom.pan((this.frame.clientWidth / scale - this.size.width) / 2, 0, { animate: false, force: true });
  }

  up() {
    const around = this.data.modules[this.choice.value]?.around ?? [];
    this.show(around.find((key) => this.has(key)) ?? this.views[0].value);
  }

  // The wheel scrolls the page, unless the graph has the focus, as after a click, or Ctrl is held.
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.frame) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) return this.panzoom.zoomWithWheel(event, { animate: false });
    const scale = this.panzoom.getScale();
    this.panzoom.pan(-event.deltaX / scale, -event.deltaY / scale, { relative: true, animate: false });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = 80 / this.panzoom.getScale();
    const pans = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    const acts = { "+": "in", "=": "in", "-": "out", 0: "width", Home: "outputs", End: "inputs", Backspace: "up" };
    if (event.key in pans) this.panzoom.pan(...pans[event.key], { relative: true, animate: false });
    else if (event.key in acts) this.act(acts[event.key]);
    else return;
    event.preventDefault();
  }

  centre(node) {
    if (!node) return;
    const [frame, box] = [this.frame.getBoundingClientRect(), node.getBoundingClientRect()];
    const scale = this.panzoom.getScale();
    const x = (frame.left + frame.width / 2 - box.left - box.width / 2) / scale;
    const y = (frame.top + frame.height / 2 - box.top - box.height / 2) / scale;
    this.panzoom.pan(x, y, { relative: true, animate: false });
  }

  nodeAt(event) {
    return event.target.closest?.("g.node, g.cluster")?.id ?? "";
  }

  click(event) {
    event.preventDefault();
    this.frame.focus({ preventScroll: true });
    const moved = this.pressed ? Math.hypot(event.clientX - this.pressed.x, event.clientY - this.pressed.y) : 0;
    const id = this.nodeAt(event);
    if (moved < CLICK && id) this.select(id.startsWith("op-") ? `row-${id.slice(3)}` : id);
  }

  // By the id of a row or of a module's node: in the drawing that is shown, or else in one that has it.
  async select(id) {
    if (id !== wanted()) history.replaceState(null, "", `#${encodeURIComponent(id)}`);
    const layer = this.data.layers[id] ?? Object.entries(this.data.layers).find(([row]) => row.startsWith(`${id}.`))?.[1];
    const nodes = layer ? layer.nodes : [id];
    if (layer?.view && !this.drawn(nodes[0])) await this.show(layer.view);
    const node = nodes.map((name) => this.drawn(name)).find(Boolean);
    for (const other of this.sheet.querySelectorAll(".chosen")) other.classList.remove("chosen");
    node?.classList.add("chosen");
    if (!this.isVisible(node)) this.centre(node);
    this.tell(id, layer ?? this.data.modules[id]);
  }

  drawn(id) {
    return this.sheet.querySelector(`#${CSS.escape(id)}`);
  }

  isVisible(node) {
    if (!node) return true;
    const [frame, box] = [this.frame.getBoundingClientRect(), node.getBoundingClientRect()];
    return box.left >= frame.left && box.right <= frame.right && box.top >= frame.top && box.bottom <= frame.bottom;
  }

  open(id) {
    const view = this.data.modules[id]?.view;
    if (this.has(view)) this.show(view);
  }

  tell(id, told) {
    if (!told) return;
    const facts = told.facts.flatMap(([name, text]) => [make("dt", { textContent: name }), make("dd", { textContent: text })]);
    const parts = [make("h3", { textContent: told.label, tabIndex: -1 }), make("dl", { className: "pairs" }, facts)];
    if (told.code) parts.push(make("pre", { textContent: told.code, tabIndex: 0 }));
    if (!told.nodes && this.has(told.view)) parts.push(this.button("Open this module", () => this.open(id)));
    if (told.from?.length) parts.push(this.links("from", told.from));
    if (told.to?.length) parts.push(this.links("to", told.to));
    if (document.getElementById(id)?.matches("tr")) {
      parts.push(make("p", {}, [make("a", { href: `#${id}`, textContent: "Row in the table" })]));
    }
    this.panel.replaceChildren(...parts);
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

const rank = (entry, words) => (words.every((word) => entry.label.toLowerCase().includes(word)) ? 0 : 1);

const wanted = () => decodeURIComponent(location.hash.slice(1));

async function startGraph(frame) {
  const graph = new Graph(frame, JSON.parse(await packed("details")));
  await graph.show(frame.dataset.first);
  search(graph);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-node]");
    if (!link) return;
    event.preventDefault();
    frame.scrollIntoView({ block: "center" });
    graph.select(link.dataset.node);
  });
  document.addEventListener("choose", (event) => graph.select(event.detail));
  const follow = () => wanted() in { ...graph.data.layers, ...graph.data.modules } && graph.select(wanted());
  addEventListener("hashchange", follow);
  await follow();
}

document.querySelectorAll(".drawing").forEach(startGraph);
