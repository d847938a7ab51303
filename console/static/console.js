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
    const cell = document.createElement("i");
    cell.setAttribute("role", "gridcell");
    more.append(cell);
  }
  box.append(more);
  let cell = box.firstElementChild;
  for (let n = 0; n < cells.length; n++, cell = cell.nextElementSibling) {
    if (row.drawn[n] !== cells[n]) cell.className = classes(cells[n]);
  }
  row.drawn = cells;
  if (reached && reached.parentElement === box) nameCell(reached);
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
    element.setAttribute("role", "row");
    const name = document.createElement("span");
    name.setAttribute("role", "rowheader");
    const link = document.createElement("a");
    link.href = `/topic?name=${encodeURIComponent(topic)}`;
    link.textContent = topic;
    link.tabIndex = -1;
    name.append(link);
    const box = document.createElement("span");
    box.className = "cells";
    element.append(name, box);
    row = { element, link, box, cells: "", drawn: "", isNear: false };
    const last = grid.lastElementChild;
    const next = last && last.id > element.id ? [...grid.children].find((e) => e.id > element.id) : null;
    grid.insertBefore(element, next);
    rows.set(topic, row);
    nearness.observe(element);
  }
  row.cells = cells;
  drawCells(row);
}

// --- the grid by keyboard: Tab reaches one link or cell of it, arrows move, Enter opens ---

let reached = null;

function topicOf(element) {
  return element.closest("section").id.slice("grid-".length);
}

function numberOf(cell) {
  return [...cell.parentElement.children].indexOf(cell);
}

function nameCell(cell) { // for screen readers
  const [topic, number] = [topicOf(cell), numberOf(cell)];
  const [colour, isBehind] = classes(rows.get(topic).cells[number]).split(" ");
  const dots = document.querySelectorAll(`#legend .${colour}[data-broker]`);
  const brokers = [...dots].map((dot) => dot.dataset.broker).join(" or ");
  const leader = colour === "none" ? "no leader" : `led by broker ${brokers}`;
  const label = `${topic} partition ${number}: ${leader}${isBehind ? ", replicas out of sync" : ""}`;
  cell.setAttribute("aria-label", label);
}

function reach(element) {
  if (reached && reached !== element) {
    reached.tabIndex = -1;
    reached.removeAttribute("aria-label");
  }
  reached = element;
  reached.tabIndex = 0;
  if (reached.localName === "i") nameCell(reached);
}

function stayReachable() { // what Tab reached may have gone
  if (!grid || (reached && reached.isConnected)) return;
  const link = grid.querySelector("a");
  if (link) reach(link);
}

function placesOf(section) {
  const row = section && rows.get(topicOf(section));
  if (!row) return [];
  row.isNear = true;
  drawCells(row);
  return [row.link, ...row.box.children];
}

function moveTo(event) {
  const section = event.target.closest("section");
  const places = placesOf(section);
  const at = places.indexOf(event.target);
  const inRow = (other) => other[Math.min(at, other.length - 1)];
  switch (event.key) {
    case "ArrowRight": return places[at + 1];
    case "ArrowLeft": return places[at - 1];
    case "Home": return places[0];
    case "End": return places.at(-1);
    case "ArrowDown": return inRow(placesOf(section.nextElementSibling));
    case "ArrowUp": return inRow(placesOf(section.previousElementSibling));
  }
}

function openCell(cell) {
  location.href = `/partition?topic=${encodeURIComponent(topicOf(cell))}&partition=${numberOf(cell)}`;
}

if (grid) {
  grid.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || !event.target.closest("section")) return;
    if (event.key === "Enter" && event.target.localName === "i") openCell(event.target);
    const place = moveTo(event);
    if (!place) return;
    event.preventDefault();
    reach(place);
    place.focus();
  });
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
  stayReachable();
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
    stayReachable();
    draw();
  };
  window.addEventListener("pagehide", () => source.close());
}

document.addEventListener("click", (event) => {
  const cell = event.target.closest(".cells i");
  if (cell) openCell(cell);
});

if (document.body.dataset.live === "yes") follow();
draw();
setInterval(draw, 100);
