"use strict";
// The pointer on a trial, in a figure or in the table: the same trial lights up everywhere.
const parts = Array.from(document.querySelectorAll('[id*="trial-"]')).filter((part) => /(^|-)trial-\d+$/.test(part.id));
const numberOf = (part) => part.id.match(/trial-(\d+)$/)[1];
for (const part of parts) {
  const row = document.getElementById("row-trial-" + numberOf(part));
  if (part.ownerSVGElement) {
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    const cells = row ? Array.from(row.cells, (cell) => cell.textContent).slice(1).filter(Boolean) : [];
    title.textContent = ["trial " + numberOf(part), ...cells].join(", ");
    part.prepend(title);
  }
  const light = (on) => {
    for (const other of parts) {
      const same = numberOf(other) === numberOf(part);
      if (other.ownerSVGElement) other.classList.toggle("dim", on && !same);
      else other.classList.toggle("lit", on && same);
    }
  };
  part.addEventListener("pointerenter", () => light(true));
  part.addEventListener("pointerleave", () => light(false));
}
