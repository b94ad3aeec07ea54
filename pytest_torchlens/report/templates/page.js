"use strict";

const MANY = 300;

// Tables are sorted by the library; what is typed in the field above filters them, as do the words that are pressed.
const rowsOf = (table) => [...table.tBodies[0].rows];
const chipsOf = (table) => [...document.querySelectorAll(`[data-narrows="${table.id}"] button`)];

function filterBy(table, field, counter) {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const pressed = chipsOf(table).filter((chip) => chip.ariaPressed === "true").map((chip) => chip.value);
  let shown = 0;
  for (const row of rowsOf(table)) {
    const text = row.textContent.toLowerCase();
    const wanted = !pressed.length || row.dataset.is.split(" ").some((word) => pressed.includes(word));
    row.hidden = !wanted || !words.every((word) => text.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  counter.value = `${shown} of ${rowsOf(table).length} ${counter.dataset.noun}`;
}

for (const field of document.querySelectorAll("[data-filters]")) {
  const table = document.getElementById(field.dataset.filters);
  const counter = document.querySelector(`[data-counts="${table.id}"]`);
  field.addEventListener("input", () => filterBy(table, field, counter));
  for (const chip of chipsOf(table)) {
    chip.addEventListener("click", () => {
      chip.ariaPressed = String(chip.ariaPressed !== "true");
      filterBy(table, field, counter);
    });
  }
  filterBy(table, field, counter);
}

// A long table is laid out when it comes near, or the browser's own search finds something in it.
for (const frame of document.querySelectorAll(".scroll.tall")) {
  if (rowsOf(frame.querySelector("table")).length < MANY) continue;
  frame.hidden = "until-found";
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    frame.hidden = false;
    observer.disconnect();
  }, { rootMargin: "200px" });
  observer.observe(frame);
  addEventListener("beforeprint", () => { frame.hidden = false; });
}

// A link to a row brings it to the middle, also where the filter hides it.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target?.matches("tr")) return;
  if (target.hidden) {
    const field = document.querySelector(`[data-filters="${target.closest("table").id}"]`);
    field.value = "";
    field.dispatchEvent(new Event("input"));
  }
  target.closest(".scroll").hidden = false;
  target.scrollIntoView({ block: "center", inline: "nearest" });
}
addEventListener("hashchange", reveal);
addEventListener("load", reveal);
