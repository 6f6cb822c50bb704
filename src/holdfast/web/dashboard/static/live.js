// Keeps the page up to date. The server tells when something has changed; then the page is fetched again and
// what differs is put in place. So there is one description of every page: the server's.
import { morph } from "./morph.js";
import { holdSelection } from "./selection.js";
import { tellTimes } from "./times.js";

const SHORTEST_MS = 500;
const LONGEST_REST_MS = 3_000;
const LONGEST_MS = 15_000;
const STORED = "holdfast-live";

let source = null; // the server's events
let timer = null; // the next refresh, if nothing happens before
let isFetching = false;
let isAsked = false;
let rests = 0; // until when the next refresh waits
let isLeaving = false; // for where the user goes: to the login after a logout, which a refresh must not outrun

const main = () => document.querySelector("main");
const button = () => document.getElementById("live");
const address = () => new URL(main().dataset.address, location.href);
const isLive = () => Boolean(main()?.dataset.events);
const isOn = () => sessionStorage.getItem(STORED) !== "off";
const runs = () => isOn() && isLive() && !document.hidden;

export function startLive() {
  if (!isLive()) return;
  button().hidden = false;
  button().addEventListener("click", () => {
    sessionStorage.setItem(STORED, isOn() ? "off" : "on");
    adjust();
  });
  for (const output of document.querySelectorAll("[data-follow]")) output.scrollTop = output.scrollHeight;
  // A tab that nobody looks at holds no connection: a browser has only few to a server.
  document.addEventListener("visibilitychange", adjust);
  // A page that the browser kept and shows again.
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    isLeaving = false;
    adjust();
  });
  addEventListener("beforeunload", () => (isLeaving = true));
  addEventListener("pagehide", close);
  adjust();
}

function adjust() {
  show(isOn() ? "live" : "paused");
  if (!runs()) {
    close();
    clearTimeout(timer);
  } else if (!source) {
    listen(); // the first events lead to a refresh
    plan();
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
  let told = "";
  source = new EventSource(main().dataset.events);
  source.addEventListener("tasks", refresh);
  source.addEventListener("stats", (event) => {
    // Rates fall by themselves when nothing happens: they can wait for the next refresh.
    const counts = JSON.stringify({ ...JSON.parse(event.data), rates: null });
    if (counts !== told) refresh();
    told = counts;
  });
  source.addEventListener("open", () => show("live"));
  source.addEventListener("error", () => {
    show("lost");
    if (source?.readyState === EventSource.CLOSED) close(); // the next refresh that succeeds listens again
  });
}

function close() {
  source?.close();
  source = null;
}

// Some things grow old without any change in the queue: ages, heartbeats, the output of a command.
function plan() {
  clearTimeout(timer);
  if (runs()) timer = setTimeout(refresh, 1000 * Number(main().dataset.refresh));
}

async function refresh() {
  isAsked = true;
  if (isFetching) return;
  isFetching = true;
  try {
    while (isAsked && runs()) {
      const wait = rests - performance.now();
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      isAsked = false;
      if (!runs()) break;
      const began = performance.now();
      await refreshOnce();
      const ended = performance.now();
      // A slow machine is left time for other things.
      rests = ended + Math.min(LONGEST_REST_MS, Math.max(SHORTEST_MS, 5 * (ended - began)));
    }
  } catch {
    show("lost");
  } finally {
    isFetching = false;
    plan();
  }
}

async function refreshOnce() {
  const headers = { Accept: "text/html", "Holdfast-Refresh": "1" };
  const response = await fetch(address(), { headers, cache: "no-store", signal: AbortSignal.timeout(LONGEST_MS) });
  if (isLeaving) return;
  if (new URL(response.url).pathname !== address().pathname) location.assign(address()); // to the login
  else if (!response.ok && response.status !== 404) show("lost");
  else if (isOn()) {
    await refreshWith(response);
    if (runs() && !source) listen();
  }
}

/** Make this page look like the one in an answer. */
export async function refreshWith(response) {
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
  } else if (source) {
    show("live");
    if (main().dataset.events !== events) {
      close();
      listen();
    }
  }
}
