// Keeps an open page as the cluster is: replaces the parts that the server sends, moves the lanes.
"use strict";

const page = document.body.dataset.page;
const parts = document.getElementById("parts");
const connection = document.getElementById("connection");
let ahead = 0; // how far the server's clock is ahead of ours, in milliseconds

function replace(id, html) {
  let part = document.getElementById(id);
  if (!part) {
    part = document.createElement("section");
    part.id = id;
    part.className = id.startsWith("grid-") ? "grid-row" : "part";
    const next = [...parts.children].find((each) => each.id.startsWith("grid-") && each.id > id);
    parts.insertBefore(part, next || null);
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
    for (const id of said.gone) document.getElementById(id)?.remove();
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
