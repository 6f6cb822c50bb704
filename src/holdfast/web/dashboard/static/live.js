// Keeps the page up to date. The server tells when something has changed; then the page is fetched again and
// what differs is put in place. So there is one description of every page: the server's.
import { morph } from "./morph.js";
import { holdSelection } from "./selection.js";
import { tellTimes } from "./times.js";

const SHORTEST_MS = 500;
const STORED = "holdfast-live";

let source = null;
let timer = null;
let isFetching = false;
let isAsked = false;
let last = 0;

const main = () => document.querySelector("main");
const button = () => document.getElementById("live");
const address = () => new URL(main().dataset.address, location.href);
const isLive = () => Boolean(main()?.dataset.events);
const isOn = () => sessionStorage.getItem(STORED) !== "off";

export function startLive() {
  if (!isLive()) return;
  button().hidden = false;
  button().addEventListener("click", () => {
    sessionStorage.setItem(STORED, isOn() ? "off" : "on");
    adjust();
  });
  // A tab that nobody looks at holds no connection: a browser has only few to a server.
  document.addEventListener("visibilitychange", adjust);
  // A page that the browser kept and shows again.
  addEventListener("pageshow", (event) => event.persisted && adjust());
  addEventListener("pagehide", close);
  adjust({ isFirst: true });
}

function adjust({ isFirst } = {}) {
  const runs = isOn() && isLive() && !document.hidden;
  show(isOn() ? "live" : "paused");
  if (!runs) {
    close();
    clearTimeout(timer);
  } else if (!source) {
    listen();
    if (!isFirst) refresh();
    else plan();
  }
}

function show(state) {
  const live = button();
  live.setAttribute("aria-pressed", String(state !== "paused"));
  live.dataset.state = state;
  const word = { live: "Live", paused: "Paused", lost: "Reconnecting…" }[state];
  const label = document.getElementById("live-word");
  if (label.textContent !== word) label.textContent = word;
}

function listen() {
  source = new EventSource(main().dataset.events);
  // The first of each tells what this page shows already.
  const seen = new Set();
  for (const name of ["stats", "tasks"]) {
    source.addEventListener(name, () => (seen.has(name) ? refresh() : seen.add(name)));
  }
  source.addEventListener("open", () => {
    show("live");
    seen.clear();
  });
  source.addEventListener("error", () => {
    if (source) show("lost");
    if (source?.readyState === EventSource.CLOSED) {
      close();
      clearTimeout(timer);
      timer = setTimeout(adjust, 5000);
    }
  });
}

function close() {
  source?.close();
  source = null;
}

// Some things grow old without any change in the queue: ages, heartbeats, the output of a command.
function plan() {
  clearTimeout(timer);
  if (!isLive()) return;
  timer = setTimeout(refresh, 1000 * Number(main().dataset.refresh || 5));
}

async function refresh() {
  if (!isOn() || document.hidden) return;
  isAsked = true;
  if (isFetching) return;
  isFetching = true;
  try {
    while (isAsked && isOn() && !document.hidden) {
      const wait = last + SHORTEST_MS - performance.now();
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      isAsked = false;
      if (!isOn() || document.hidden) break;
      last = performance.now();
      const headers = { Accept: "text/html", "Holdfast-Refresh": "1" };
      const response = await fetch(address(), { headers, cache: "no-store" });
      if (new URL(response.url).pathname !== address().pathname) location.assign(address()); // to the login
      else if (!response.ok && response.status !== 404) show("lost");
      else if (isOn()) await refreshWith(response);
    }
  } catch {
    show("lost");
  } finally {
    isFetching = false;
    plan();
  }
}

/** Make this page look like the one in an answer. */
export async function refreshWith(response) {
  if (source) show("live");
  const events = main().dataset.events;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  const next = fresh.querySelector("main");
  if (!next) return;
  // A page fetched again has no notice, and does not take away the one that is shown.
  const notice = next.querySelector("#notice");
  if (notice && !notice.childElementCount) notice.replaceWith(document.importNode(document.getElementById("notice"), true));
  document.title = fresh.title;
  holdSelection(next);
  morph(main(), next);
  document.dispatchEvent(new Event("holdfast:updated"));
  tellTimes();
  if (!isLive()) {
    button().hidden = true; // such as a job that is gone
    close();
  } else if (source && main().dataset.events !== events) {
    close();
    listen();
  }
}
