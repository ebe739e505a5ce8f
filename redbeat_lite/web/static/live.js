"use strict";
// Keeps the page as the server has it, and shows how far away its times are. Without this script, the forms and links work alone.
const EVERY = 2000, UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
const banner = document.getElementById("banner");
const seen = new Map(); // id of a part -> its last HTML from the server; the HTML on the page differs, because it also has the distances

function span(seconds) {
  const at = UNITS.findIndex(([, size]) => seconds >= size), [unit, size] = UNITS[at], [less, part] = UNITS[at + 1] ?? ["", 60];
  const rest = Math.floor((seconds % size) / part);
  return `${Math.floor(seconds / size)} ${unit}` + (less && rest ? ` ${rest} ${less}` : "");
}

function distances() {
  for (const time of document.querySelectorAll("time")) {
    const seconds = (new Date(time.dateTime) - Date.now()) / 1000, away = Math.abs(seconds);
    time.dataset.away = away < 1 ? "now" : seconds > 0 ? `in ${span(away)}` : `${span(away)} ago`;
  }
}

const key = (element) => element.getAttribute("href") ?? element.dataset.key;

function show(text, ok) {
  const fresh = new DOMParser().parseFromString(text, "text/html"), parts = document.querySelectorAll("[data-part]");
  if (ok && !parts.length) location.reload(); // the page had no parts, because Redis was away
  banner.textContent = fresh.getElementById("banner")?.textContent ?? banner.dataset.gone; // without a banner, the answer is from a proxy or a login
  for (const part of parts) {
    const next = fresh.getElementById(part.id), selected = !getSelection().isCollapsed && getSelection().containsNode(part, true);
    if (!next || selected || part.querySelector("details[open], input:checked") || seen.get(part.id) === next.innerHTML) continue;
    seen.set(part.id, next.innerHTML);
    const held = part.contains(document.activeElement) && key(document.activeElement);
    part.replaceChildren(...next.childNodes);
    if (held) [...part.querySelectorAll("a, summary")].find((each) => key(each) === held)?.focus();
  }
  distances();
}

async function look() {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, {cache: "no-store", redirect: "manual"});
    if (answer.type === "opaqueredirect") return location.reload(); // to a login
    show(await answer.text(), answer.ok);
  } catch {
    banner.textContent = banner.dataset.gone;
  }
}

async function live() {
  await new Promise((done) => setTimeout(done, EVERY));
  await look();
  live();
}

distances();
setInterval(distances, 1000);
if ("live" in document.body.dataset) live();
document.addEventListener("visibilitychange", () => "live" in document.body.dataset && look());
