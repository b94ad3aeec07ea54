"use strict";

const field = document.getElementById("find");
const cards = [...document.querySelectorAll(".card")];

function find() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const card of cards) {
    const text = (card.querySelector("h2").textContent + " " + card.querySelector("p").textContent).toLowerCase();
    card.hidden = !words.every((word) => text.includes(word));
  }
  document.getElementById("found").value = `${cards.filter((card) => !card.hidden).length} of ${cards.length}`;
}

field.addEventListener("input", find);
find();
