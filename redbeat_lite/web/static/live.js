"use strict";
// Keeps the page as the server has it, and says how far away its times are. Without this, all works by forms and links.
const EVERY = 2000;
const seen = new Map(); // part -> its HTML as the server last had it: what is shown has the distances besides
let tag = null;

function words(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let first = units.findIndex(([, size]) => seconds >= size);
  if (first < 0) return "now";
  const [unit, size] = units[first], next = units[first + 1];
  const rest = next ? Math.floor((seconds % size) / next[1]) : 0;
  return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${next[0]}` : ""}`;
}

function distances() {
  for (const time of document.querySelectorAll("time")) {
    const seconds = (new Date(time.dateTime) - Date.now()) / 1000, span = words(Math.abs(seconds));
    time.dataset.away = span === "now" ? span : seconds > 0 ? `in ${span}` : `${span} ago`;
  }
}

function isUsed(part) {
  const at = part.contains(document.activeElement) ? document.activeElement : null;
  return at?.matches("input, select, textarea") || !window.getSelection().isCollapsed;
}

function show(text, ok) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const parts = document.querySelectorAll("[data-part]");
  if (ok && !parts.length) location.reload(); // it was told that Redis is away
  document.getElementById("banner").textContent = fresh.getElementById("banner")?.textContent ?? "";
  for (const part of parts) {
    const next = fresh.getElementById(part.id);
    if (!next || seen.get(part.id) === next.innerHTML || isUsed(part)) continue;
    seen.set(part.id, next.innerHTML);
    const href = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    part.replaceChildren(...document.adoptNode(next).childNodes);
    if (href) [...part.querySelectorAll("a")].find((a) => a.getAttribute("href") === href)?.focus();
  }
  distances();
}

async function look() {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, {cache: "no-store", headers: tag ? {"If-None-Match": tag} : {}});
    if (answer.status !== 304) {
      tag = answer.ok ? answer.headers.get("ETag") : null;
      show(await answer.text(), answer.ok);
    }
  } catch {
    const banner = document.getElementById("banner");
    banner.textContent = banner.dataset.gone;
    tag = null;
  }
}

distances();
setInterval(distances, 1000);
if ("live" in document.body.dataset) {
  (async () => { for (;;) { await new Promise((done) => setTimeout(done, EVERY)); await look(); } })();
  document.addEventListener("visibilitychange", look);
}
