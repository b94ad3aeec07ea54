"use strict";

const MANY = 300;
const BLANK = ["", "–"];

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const unpack = async (id) => JSON.parse(await inflate(document.getElementById(id).textContent));

function make(tag, properties = {}, children = []) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// A table that sorts by its heads, and filters by words and chips.  Of a long one, the page holds the rows in sight.
class Table {
  constructor(table, rows) {
    this.table = table;
    this.body = table.tBodies[0];
    this.frame = table.closest(".scroll");
    this.rows = rows;
    this.byId = new Map(rows.map((row) => [row.id, row]));
    this.field = document.querySelector(`[data-filters="${table.id}"]`);
    this.counter = document.querySelector(`[data-counts="${table.id}"]`);
    this.chips = [...document.querySelectorAll(`[data-narrows="${table.id}"] button`)];
    this.above = make("tr", { ariaHidden: "true" }, [make("td")]);
    this.below = make("tr", { ariaHidden: "true" }, [make("td")]);
    this.height = 32;
    this.listen();
    this.filter();
  }

  listen() {
    this.field.addEventListener("input", () => this.filter());
    for (const chip of this.chips) {
      chip.addEventListener("click", () => {
        chip.ariaPressed = String(chip.ariaPressed !== "true");
        this.filter();
      });
    }
    this.table.tHead.addEventListener("click", (event) => event.target.closest("th") && this.sort(event.target.closest("th")));
    this.frame.addEventListener("scroll", () => this.isLong && this.draw());
    addEventListener("beforeprint", () => this.body.replaceChildren(...this.shown));
    addEventListener("afterprint", () => this.draw());
  }

  filter() {
    const words = this.field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const pressed = this.chips.filter((chip) => chip.ariaPressed === "true").map((chip) => chip.value);
    this.shown = this.rows.filter((row) => {
      if (pressed.length && !row.dataset.is.split(" ").some((word) => pressed.includes(word))) return false;
      const text = words.length ? row.textContent.toLowerCase() : "";
      return words.every((word) => text.includes(word));
    });
    this.counter.value = `${this.shown.length} of ${this.rows.length} ${this.counter.dataset.noun}`;
    this.draw();
  }

  // Up first, then down; what has no value comes last both ways.
  sort(head) {
    const down = head.ariaSort === "ascending";
    for (const other of this.table.tHead.rows[0].cells) other.ariaSort = "none";
    head.ariaSort = down ? "descending" : "ascending";
    const keys = new Map(this.rows.map((row) => [row, keyOf(row.cells[head.cellIndex])]));
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
    this.rows.sort((one, other) => {
      const [a, b] = [keys.get(one), keys.get(other)];
      if (a === null || b === null) return (a === null) - (b === null);
      return down ? order(b, a) : order(a, b);
    });
    this.filter();
  }

  get isLong() {
    return this.shown.length > MANY;
  }

  draw() {
    if (!this.isLong) return this.body.replaceChildren(...this.shown);
    const visible = Math.ceil(this.frame.clientHeight / this.height) || 30;
    const first = Math.max(0, Math.floor(this.frame.scrollTop / this.height) - visible);
    const last = Math.min(this.shown.length, first + 3 * visible);
    if (this.body.contains(document.activeElement) && first === this.first && last === this.last) return;
    [this.first, this.last] = [first, last];
    this.above.firstChild.height = first * this.height;
    this.below.firstChild.height = (this.shown.length - last) * this.height;
    this.body.replaceChildren(...(first ? [this.above] : []), ...this.shown.slice(first, last), this.below);
    this.height = this.shown[first].offsetHeight || this.height;
  }

  // Bring a row to the middle, also where the filter leaves it out.
  reveal(row) {
    if (!this.shown.includes(row)) {
      this.field.value = "";
      for (const chip of this.chips) chip.ariaPressed = "false";
      this.filter();
    }
    if (this.isLong) {
      this.frame.scrollTop = this.shown.indexOf(row) * this.height - this.frame.clientHeight / 2;
      this.draw();
    }
    for (const other of this.rows) other.classList.toggle("target", other === row);
    row.scrollIntoView({ block: "center", inline: "nearest" });
  }
}

function keyOf(cell) {
  const text = cell.textContent.trim();
  if (BLANK.includes(text)) return null;
  const key = cell.dataset.sort ?? text;
  return Number.isNaN(Number(key)) ? key : Number(key);
}

const tables = [];

async function startTable(table) {
  const block = document.getElementById(`${table.id}-rows`);
  if (block) await idle();
  const rows = block ? parsed(await inflate(block.textContent)) : [...table.tBodies[0].rows];
  tables.push(new Table(table, rows));
  reveal();
}

// What is long and further down waits for the graph.
const idle = () => new Promise((done) => requestIdleCallback(done, { timeout: 3000 }));

async function fill(list) {
  await idle();
  list.innerHTML = await inflate(document.getElementById(list.dataset.packed).textContent);
}

function parsed(html) {
  const holder = document.createElement("template");
  holder.innerHTML = `<table><tbody>${html}</tbody></table>`;
  return [...holder.content.querySelector("tbody").rows];
}

const tableWith = (id) => tables.find((table) => table.byId.has(id));

function reveal() {
  const id = decodeURIComponent(location.hash.slice(1));
  const table = id && tableWith(id);
  if (table) table.reveal(table.byId.get(id));
}

document.querySelectorAll("table.sortable").forEach(startTable);
document.querySelectorAll("[data-packed]").forEach(fill);
addEventListener("hashchange", reveal);
addEventListener("load", reveal);
