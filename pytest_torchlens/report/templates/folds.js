// Lays the graph out.  Graphviz has placed the nodes of each fold; an unfolded module pushes the rest of its fold apart.
const TITLE = 44;
const PAD = 10;
const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes = {}, children = []) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A rising function that makes each piece [from, to] at least as long as it must be; nothing else shrinks, so nothing overlaps.
function stretch(pieces) {
  const ends = [...new Set(pieces.flatMap((piece) => [piece.from, piece.to]))].sort((a, b) => a - b);
  let added = 0;
  const steps = ends.map((start, index) => {
    const middle = (start + (ends[index + 1] ?? start)) / 2;
    const around = pieces.filter((piece) => piece.from <= middle && middle <= piece.to && piece.to > piece.from);
    const rate = index + 1 < ends.length ? Math.max(0, ...around.map((piece) => piece.length / (piece.to - piece.from) - 1)) : 0;
    const step = { start, added, rate };
    added += rate * ((ends[index + 1] ?? start) - start);
    return step;
  });
  return (value) => {
    let [low, high] = [0, steps.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle].start <= value) low = middle + 1;
      else high = middle;
    }
    const step = steps[low - 1];
    return step ? value + step.added + step.rate * (value - step.start) : value;
  };
}

class Folds {
  constructor(folds) {
    this.all = new Map(folds.map((fold) => [fold.id, fold]));
    this.parentOf = new Map();
    this.classOf = new Map();
    for (const fold of folds) {
      for (const [id, classes] of fold.nodes) {
        if (classes.startsWith("port")) continue;
        this.parentOf.set(id, fold.id);
        this.classOf.set(id, classes);
      }
    }
    this.open = new Set();
    this.levels = this.countLevels();
  }

  // The number of nodes that are seen where all folds above a level are open.
  countLevels() {
    const levels = [];
    let [folds, shown] = [[""], 0];
    while (folds.length) {
      const nodes = folds.flatMap((id) => this.nodesOf(id));
      const inner = nodes.filter((id) => this.all.has(id));
      levels.push(shown + nodes.length);
      shown += nodes.length - inner.length;
      folds = inner;
    }
    return levels;
  }

  nodesOf(id) {
    return this.all.get(id).nodes.filter(([, classes]) => !classes.startsWith("port")).map(([node]) => node);
  }

  openLevels(count) {
    this.open.clear();
    let folds = [""];
    for (let level = 0; level < count; level += 1) {
      folds = folds.flatMap((id) => this.nodesOf(id)).filter((id) => this.all.has(id));
      folds.forEach((id) => this.open.add(id));
    }
  }

  // The folds around a node, the innermost first.
  around(id) {
    const found = [];
    for (let at = this.parentOf.get(id); at; at = this.parentOf.get(at)) found.push(at);
    return found;
  }

  // The node that shows another: itself, or the outermost folded one around it.
  shownFor(id) {
    return this.around(id).reverse().find((outer) => !this.open.has(outer)) ?? id;
  }

  leaves(id) {
    return this.all.has(id) ? this.nodesOf(id).flatMap((inner) => this.leaves(inner)) : [id];
  }

  layout(id) {
    const fold = this.all.get(id);
    const inner = new Map(fold.nodes.filter(([node]) => this.open.has(node)).map(([node]) => [node, this.layout(node)]));
    const pieces = (axis) => fold.nodes.filter(([node]) => inner.has(node)).map(([node, , box]) => ({
      from: box[axis] - box[axis + 2] / 2, to: box[axis] + box[axis + 2] / 2,
      length: Math.max(inner.get(node).outer[axis], box[axis + 2]),
    }));
    const [x, y] = [stretch(pieces(0)), stretch(pieces(1))];
    const size = [x(fold.size[0]), y(fold.size[1])];
    const width = Math.max(size[0], 8 * Math.max(0, ...fold.title.map((line) => line.length)) + 40);
    return { fold, inner, x, y, size, outer: [width + 2 * PAD, size[1] + TITLE + 2 * PAD] };
  }

  draw() {
    const root = this.layout("");
    return { size: root.size, group: this.drawFold(root) };
  }

  drawFold(laid) {
    const places = new Map(laid.fold.nodes.map((node) => [node[0], this.place(laid, node)]));
    const edges = laid.fold.edges.map((edge) => this.drawEdge(laid, places, edge));
    const nodes = laid.fold.nodes.map((node) => {
      const inner = laid.inner.get(node[0]);
      return inner ? this.drawBox(inner, places.get(node[0])) : this.drawNode(node, places.get(node[0]));
    });
    return shape("g", {}, [...edges, ...nodes]);
  }

  place(laid, [id, , [cx, cy, width, height]]) {
    const [x, y] = [laid.x(cx), laid.y(cy)];
    if (!laid.inner.has(id)) return { x, y, width, height, dx: x - cx, dy: y - cy };
    const [left, top] = [laid.x(cx - width / 2), laid.y(cy - height / 2)];
    return { left, top, width: laid.x(cx + width / 2) - left, height: laid.y(cy + height / 2) - top };
  }

  drawNode([id, classes, , outline, lines], { x, y, width, height, dy }) {
    const look = { "stroke-width": outline.width, "stroke-dasharray": outline.dash };
    const box = (inset) => ({ x: x - width / 2 + inset, y: y - height / 2 + inset, width: width - 2 * inset, height: height - 2 * inset });
    const parts = [];
    if (outline.kind === "oval") parts.push(shape("ellipse", { cx: x, cy: y, rx: width / 2, ry: height / 2, ...look }));
    else if (outline.kind === "box") parts.push(shape("rect", { ...box(0), ...look }));
    else parts.push(shape("rect", { ...box(0), class: "unseen" }));
    if (classes.includes("module")) parts.push(shape("rect", { ...box(4), class: "inset" }));
    for (const [text, at, bold] of lines) parts.push(shape("text", { x, y: at + dy, class: bold ? "bold" : undefined }, [text]), " ");
    if (this.all.has(id)) parts.push(this.toggle(x + width / 2, y - height / 2, "+"));
    if (classes.startsWith("port")) return shape("g", { class: classes, "data-tensor": id.replace(/^(in|out)-/, "") }, parts);
    const state = this.all.has(id) ? { "aria-expanded": "false" } : {};
    return shape("g", { id, class: `node ${classes}`, tabindex: 0, role: "button", "aria-label": lines.map(([text]) => text).join(" "), ...state }, parts);
  }

  drawBox(inner, { left, top, width, height }) {
    const { id, title } = inner.fold;
    const parts = [shape("rect", { x: left, y: top, width, height, rx: 8 })];
    title.forEach((line, index) => parts.push(shape("text", { x: left + PAD, y: top + 20 + 16 * index, class: index ? "start" : "start bold" }, [line]), " "));
    parts.push(this.toggle(left + width, top, "−"));
    const head = shape("g", { id, class: "cluster", tabindex: 0, role: "button", "aria-expanded": "true", "aria-label": title.join(" ") }, parts);
    const content = this.drawFold(inner);
    content.setAttribute("transform", `translate(${left + (width - inner.size[0]) / 2} ${top + TITLE + (height - TITLE - inner.size[1]) / 2})`);
    return shape("g", {}, [head, content]);
  }

  toggle(x, y, sign) {
    return shape("g", { class: "toggle", "aria-hidden": "true" }, [shape("circle", { cx: x, cy: y, r: 11 }), shape("text", { x, y: y + 5 }, [sign])]);
  }

  // An arrow's ends go with their nodes, what is between with the drawing.
  drawEdge(laid, places, [tail, head, classes, curve, tip, words, carried, dash]) {
    const shift = (id, x, y) => (laid.inner.has(id) ? [laid.x(x), laid.y(y)] : [x + places.get(id).dx, y + places.get(id).dy]);
    const points = [];
    for (let at = 0; at < curve.length; at += 2) points.push([laid.x(curve[at]), laid.y(curve[at + 1])]);
    if (points.length) {
      points[0] = shift(tail, curve[0], curve[1]);
      points[points.length - 1] = shift(head, curve.at(-2), curve.at(-1));
    }
    const [start, ...rest] = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`);
    const parts = [shape("path", { d: `M${start}C${rest.join(" ")}`, "stroke-dasharray": dash || undefined })];
    if (tip.length) {
      const [endX, endY] = shift(head, curve.at(-2), curve.at(-1));
      const [moveX, moveY] = [endX - curve.at(-2), endY - curve.at(-1)];
      const corners = tip.map((value, index) => value + (index % 2 ? moveY : moveX));
      parts.push(shape("polygon", { points: corners.join(" ") }));
      parts.push(...this.leadIn(laid, places, head, "in", carried, [corners[2], corners[3]]));
    }
    parts.push(...this.leadIn(laid, places, tail, "out", carried, points[0]));
    for (const [text, x, y] of words) parts.push(shape("text", { x: laid.x(x), y: laid.y(y), class: "start" }, [text]));
    return shape("g", { class: `edge ${classes}` }, parts);
  }

  // From an arrow's end at the border of an unfolded module to where the module takes or gives the tensor.
  leadIn(laid, places, id, side, carried, from) {
    const inner = laid.inner.get(id);
    if (!inner || !from) return [];
    const { left, top, width, height } = places.get(id);
    const ports = inner.fold.nodes.filter(([port]) => carried.some((tensor) => port === `${side}-${tensor}`));
    return ports.map(([, , [x, y]]) => {
      const to = [left + (width - inner.size[0]) / 2 + inner.x(x), top + TITLE + (height - TITLE - inner.size[1]) / 2 + inner.y(y)];
      return shape("path", { class: "lead", d: `M${from.join()}L${to.join()}` });
    });
  }
}
