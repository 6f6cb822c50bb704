// Makes an element look like another one, changing only what differs: focus, selection, scrolling and
// what somebody has ticked, typed or opened stay as they are.

// By attributes: a form's properties are hidden by its fields, and one may be called id.
const keyOf = (node) =>
  node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("id") || node.getAttribute("data-key") || "" : "";

// An element with data-keep belongs to whoever works with it: it is replaced, as a whole, only when the value
// of that attribute changes and nobody is in it.
const isKept = (element) => element.hasAttribute("data-keep");

function replaceKept(from, to) {
  const isSame = from.getAttribute("data-keep") === to.getAttribute("data-keep");
  if (!isSame && !from.contains(document.activeElement)) from.replaceWith(document.importNode(to, true));
}

// What a person changes, and a new version of the page must not undo.
const isTheirs = (element, name) =>
  (name === "open" && element.localName === "details") ||
  (name === "title" && element.localName === "time") ||
  (name === "disabled" && element.closest("#bulk")) ||
  (name === "class" && element.localName === "tr" && element.closest("#selection")) ||
  (name === "hidden" && (element.id === "live" || element.id === "select-all" || element.matches(".copy"))) ||
  ((name === "checked" || name === "value") && element.localName === "input" && element.type !== "hidden");

export function morph(from, to) {
  if (isKept(from)) {
    replaceKept(from, to);
    return;
  }
  const follows = from.dataset?.follow !== undefined;
  const wasAtEnd = follows && from.scrollHeight - from.scrollTop - from.clientHeight < 8;
  morphAttributes(from, to);
  morphChildren(from, to);
  if (wasAtEnd) from.scrollTop = from.scrollHeight;
}

function morphAttributes(from, to) {
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !isTheirs(from, name)) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value && !isTheirs(from, name)) from.setAttribute(name, value);
  }
}

function morphChildren(from, to) {
  const wanted = [...to.childNodes];
  const wantedKeys = new Set(wanted.map(keyOf).filter(Boolean));
  const known = new Map([...from.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  let place = from.firstChild;
  for (const next of wanted) {
    const key = keyOf(next);
    // What is gone goes first, so that what stays need not be moved: moving would take the focus away.
    while (place && (isGone(place, wantedKeys) || (known.has(key) && isBlank(place)))) place = removed(place);
    const match = key ? known.get(key) : place && !keyOf(place) && isAlike(place, next) ? place : undefined;
    if (!match || !isAlike(match, next)) {
      from.insertBefore(document.importNode(next, true), place);
    } else {
      if (match === place) place = place.nextSibling;
      else from.insertBefore(match, place);
      if (match.nodeType === Node.ELEMENT_NODE) morph(match, next);
      else morphText(match, next.data);
    }
  }
  while (place) place = removed(place);
}

// What is appended leaves a selection in the text as it is.
function morphText(node, text) {
  if (node.data === text) return;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

const isGone = (node, wantedKeys) => keyOf(node) && !wantedKeys.has(keyOf(node));
const isBlank = (node) => node.nodeType === Node.TEXT_NODE && !node.data.trim();
const isAlike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName;

function removed(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}
