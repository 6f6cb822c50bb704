// Selecting many jobs of a list: all of a page at once, a range with shift, and how many are selected.

let lastTicked = null;

const boxes = () => [...document.querySelectorAll("#selection input[name=id]")];

export function startSelection() {
  update();
  document.addEventListener("holdfast:updated", update);
  document.addEventListener("change", (event) => {
    if (event.target.id === "select-all") for (const box of boxes()) box.checked = event.target.checked;
    update();
  });
  document.addEventListener("click", (event) => {
    if (!event.target.matches?.("#selection input[name=id]")) return;
    if (event.shiftKey && lastTicked?.isConnected) {
      const all = boxes();
      const [from, to] = [all.indexOf(lastTicked), all.indexOf(event.target)].sort((a, b) => a - b);
      for (const box of all.slice(from, to + 1)) box.checked = event.target.checked;
      update();
    }
    lastTicked = event.target;
  });
}

/** While jobs are selected, or the pointer is about to press something in a row, no row of the list comes or
 *  goes: only what the rows say is brought up to date. */
export function holdSelection(next) {
  const shown = document.getElementById("selection");
  const isAimedAt = shown?.querySelector(".actions:hover, .tick:hover");
  if (!shown || !(isAimedAt || boxes().some((box) => box.checked))) return;
  const fresh = next.querySelector("#selection");
  if (!fresh) {
    next.querySelector("#summary")?.after(shown.cloneNode(true));
    return;
  }
  const rows = new Map([...fresh.querySelectorAll("tbody tr")].map((row) => [row.dataset.key, row]));
  const held = [...shown.querySelectorAll("tbody tr")].map((row) => rows.get(row.dataset.key) ?? row.cloneNode(true));
  fresh.querySelector("tbody").replaceChildren(...held);
}

function update() {
  const all = boxes();
  const whole = document.getElementById("select-all");
  if (!whole) return;
  const ticked = all.filter((box) => box.checked).length;
  whole.hidden = false;
  whole.checked = ticked > 0 && ticked === all.length;
  whole.indeterminate = ticked > 0 && ticked < all.length;
  for (const box of all) box.closest("tr").classList.toggle("ticked", box.checked);
  const label = document.getElementById("selected");
  const text = ticked ? `${ticked} selected (list paused):` : "0 selected:";
  if (label.textContent !== text) label.textContent = text;
  for (const button of document.querySelectorAll("#bulk button[name=action]")) button.disabled = ticked === 0;
}
