// Keeps an open page as the cluster is: replaces the parts that the server sends, moves the lanes.
"use strict";

const page = document.body.dataset.page;
const parts = document.getElementById("parts");
const connection = document.getElementById("connection");
let ahead = 0; // how far the server's clock is ahead of ours, in milliseconds

// --- the grid: a row for each topic; its cells are elements once the row comes near the window ---

const grid = document.getElementById("grid");
const rows = new Map(); // by topic: the cells as the server sends them, and the row's element

function classes(cell) {
  if (cell === "-" || cell === "~") return cell === "-" ? "none" : "none s";
  const isBehind = cell >= "a";
  return isBehind ? `l${cell.charCodeAt(0) - 97} s` : `l${cell}`;
}

function drawCells(row) {
  if (!row.isNear || row.drawn === row.cells) return;
  const { box, cells } = row;
  while (box.childElementCount > cells.length) box.lastElementChild.remove();
  const more = document.createDocumentFragment();
  for (let n = box.childElementCount; n < cells.length; n++) {
    more.append(document.createElement("i"));
  }
  box.append(more);
  let cell = box.firstElementChild;
  for (let n = 0; n < cells.length; n++, cell = cell.nextElementSibling) {
    if (row.drawn[n] !== cells[n]) cell.className = classes(cells[n]);
  }
  row.drawn = cells;
}

const nearness = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const row = rows.get(entry.target.id.slice("grid-".length));
      if (!row) continue;
      row.isNear = entry.isIntersecting;
      drawCells(row);
    }
  },
  { rootMargin: "400px" },
);

function setRow(topic, cells) {
  let row = rows.get(topic);
  if (!row) {
    const element = document.createElement("section");
    element.id = `grid-${topic}`;
    element.className = "grid-row";
    const link = document.createElement("a");
    link.href = `/topic?name=${encodeURIComponent(topic)}`;
    link.textContent = topic;
    const box = document.createElement("span");
    box.className = "cells";
    element.append(link, box);
    row = { element, box, cells: "", drawn: "", isNear: false };
    const last = grid.lastElementChild;
    const next = last && last.id > element.id ? [...grid.children].find((e) => e.id > element.id) : null;
    grid.insertBefore(element, next);
    rows.set(topic, row);
    nearness.observe(element);
  }
  row.cells = cells;
  drawCells(row);
}

function removePart(id) {
  if (id.startsWith("grid-")) rows.delete(id.slice("grid-".length));
  document.getElementById(id)?.remove();
}

if (grid) {
  const lines = grid.textContent.split("\n").filter(Boolean);
  grid.textContent = "";
  for (const line of lines) {
    const space = line.lastIndexOf(" ");
    setRow(line.slice(0, space), line.slice(space + 1));
  }
}

// --- parts ---

function idsBut(said) { // after a connection was lost: what has gone meanwhile
  const shown = [...parts.children, ...(grid ? grid.children : [])].map((part) => part.id);
  return shown.filter((id) => !(id in said));
}

function replace(id, html) {
  if (id.startsWith("grid-")) return setRow(id.slice("grid-".length), html);
  let part = document.getElementById(id);
  if (!part) {
    part = document.createElement("section");
    part.id = id;
    part.className = "part";
    parts.append(part);
  }
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const href = focused && focused.getAttribute("href");
  const open = new Map([...part.querySelectorAll("details")].map((d) => [d.dataset.key, d.open]));
  part.innerHTML = html; // every value in it was escaped by the server's templates
  for (const details of part.querySelectorAll("details")) {
    if (open.has(details.dataset.key)) details.open = open.get(details.dataset.key);
  }
  if (href) {
    const again = [...part.querySelectorAll("a")].find((a) => a.getAttribute("href") === href);
    if (again) again.focus({ preventScroll: true });
  }
}

function draw() {
  const lanes = document.querySelector(".lanes");
  if (!lanes) return;
  const now = (Date.now() + ahead - Number(lanes.dataset.base)) / 1000;
  for (const group of lanes.querySelectorAll(".moving")) {
    group.setAttribute("transform", `translate(${(60 - now).toFixed(2)} 0)`);
  }
}

function follow() {
  const source = new EventSource(`/live/${page}${location.search}`);
  source.onopen = () => {
    connection.textContent = "live";
    connection.className = "";
  };
  source.onerror = () => {
    connection.textContent = "no connection to the console";
    connection.className = "lost";
  };
  source.onmessage = (message) => {
    const said = JSON.parse(message.data);
    ahead = said.now_ms - Date.now();
    for (const id of said.is_whole ? idsBut(said.parts) : said.gone) removePart(id);
    for (const [id, html] of Object.entries(said.parts)) replace(id, html);
    draw();
  };
  window.addEventListener("pagehide", () => source.close());
}

document.addEventListener("click", (event) => {
  const cell = event.target.closest(".cells i");
  if (!cell) return;
  const topic = cell.closest("section").id.slice("grid-".length);
  const number = [...cell.parentElement.children].indexOf(cell);
  location.href = `/partition?topic=${encodeURIComponent(topic)}&partition=${number}`;
});

if (document.body.dataset.live === "yes") follow();
draw();
setInterval(draw, 100);
