"use strict";

// Tables: a click on a heading sorts, typing in the field above filters.
const rowsOf = (table) => [...table.tBodies[0].rows];

function key(row, column) {
  const cell = row.cells[column];
  return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b, undefined, { numeric: true });
}

function sortBy(table, heading) {
  const order = heading.ariaSort === "ascending" ? "descending" : "ascending";
  const sign = order === "ascending" ? 1 : -1;
  const keyed = rowsOf(table).map((row) => [key(row, heading.cellIndex), row]);
  keyed.sort((one, other) => sign * compare(one[0], other[0]));
  table.tBodies[0].append(...keyed.map((pair) => pair[1]));
  for (const other of table.tHead.rows[0].cells) other.ariaSort = "none";
  heading.ariaSort = order;
}

function filterBy(table, field, counter) {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rowsOf(table)) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  counter.value = `${shown} of ${rowsOf(table).length} ${counter.dataset.noun}`;
}

for (const field of document.querySelectorAll("[data-filters]")) {
  const table = document.getElementById(field.dataset.filters);
  const counter = document.querySelector(`[data-counts="${table.id}"]`);
  field.addEventListener("input", () => filterBy(table, field, counter));
  for (const heading of table.tHead.rows[0].cells) {
    heading.addEventListener("click", () => sortBy(table, heading));
  }
  filterBy(table, field, counter);
}

// A link to a row or a node brings it to the middle, also where the filter hides it.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target || target.matches("main, section")) return;
  if (target.hidden) {
    const field = document.querySelector(`[data-filters="${target.closest("table").id}"]`);
    field.value = "";
    field.dispatchEvent(new Event("input"));
  }
  const inline = target.matches("tr") ? "nearest" : "center";
  target.scrollIntoView({ block: "center", inline });
}
addEventListener("hashchange", reveal);
addEventListener("load", reveal);

// The graph: fitted to the width at first, but never so small that it cannot be read.
const SMALLEST_FIT = 0.45;
const STEP = 1.25;

function viewer(frame) {
  const sheet = frame.firstElementChild;
  const svg = sheet.firstElementChild;
  const width = Number(frame.dataset.width);
  const height = Number(frame.dataset.height);
  let scale = 1;

  function zoom(to, x = frame.clientWidth / 2, y = frame.clientHeight / 2) {
    const next = Math.min(Math.max(to, 0.02), 4);
    const left = (frame.scrollLeft + x) * (next / scale) - x;
    const top = (frame.scrollTop + y) * (next / scale) - y;
    scale = next;
    sheet.style.width = `${width * scale}px`;
    sheet.style.height = `${height * scale}px`;
    svg.style.transform = `scale(${scale})`;
    frame.scrollTo(left, top);
  }

  const fitWidth = () => Math.min(1, frame.clientWidth / width);
  const actions = {
    in: () => zoom(scale * STEP),
    out: () => zoom(scale / STEP),
    width: () => zoom(fitWidth()),
    whole: () => zoom(Math.min(fitWidth(), frame.clientHeight / height)),
    top: () => centre(frame, svg.querySelector(".node.output"), 0),
    bottom: () => centre(frame, svg.querySelector(".node.input"), frame.scrollHeight),
  };
  const keys = { "+": "in", "=": "in", "-": "out", 0: "width", Home: "top", End: "bottom" };

  svg.style.width = `${width}px`;
  svg.style.height = `${height}px`;
  frame.classList.add("ready");
  zoom(Math.max(fitWidth(), SMALLEST_FIT));
  actions.top();
  frame.scrollTop = 0;

  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", actions[button.dataset.zoom]);
  }
  frame.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });
  frame.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = frame.getBoundingClientRect();
    zoom(scale * Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top);
  }, { passive: false });
  drag(frame);
}

function centre(frame, node, top) {
  if (!node) return frame.scrollTo({ top });
  const [box, shape] = [frame.getBoundingClientRect(), node.getBoundingClientRect()];
  const x = shape.left + shape.width / 2 - box.left - frame.clientWidth / 2;
  const y = shape.top + shape.height / 2 - box.top - frame.clientHeight / 2;
  frame.scrollBy(x, y);
}

function drag(frame) {
  let last = null;
  frame.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0) last = event;
  });
  addEventListener("pointermove", (event) => {
    if (!last) return;
    frame.classList.add("held");
    frame.scrollBy(last.clientX - event.clientX, last.clientY - event.clientY);
    last = event;
  });
  addEventListener("pointerup", () => {
    last = null;
    frame.classList.remove("held");
  });
  frame.addEventListener("dragstart", (event) => event.preventDefault());
}

document.querySelectorAll(".drawing").forEach(viewer);
