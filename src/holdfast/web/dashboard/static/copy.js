// Buttons that copy a text. Where the page came over plain http, browsers hide the clipboard, and a selected
// text field does it.

const BUTTONS = "button.copy";

const textOf = ({ dataset }) =>
  dataset.copy ?? document.getElementById(dataset.copyFrom)?.textContent ?? "";

export function startCopying() {
  showButtons();
  document.addEventListener("holdfast:updated", showButtons);
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(BUTTONS);
    if (!button) return;
    const isCopied = await copy(textOf(button));
    button.classList.toggle("copied", isCopied);
    tell(isCopied ? "Copied." : "Couldn't copy; select the text instead.");
    setTimeout(() => button.classList.remove("copied"), 1500);
  });
}

function showButtons() {
  for (const button of document.querySelectorAll(BUTTONS)) button.hidden = false;
}

async function copy(text) {
  try {
    if (isSecureContext && navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
  } catch {
    // not allowed: the other way may be
  }
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "hidden";
  document.body.append(field);
  field.select();
  try {
    return document.execCommand("copy");
  } finally {
    field.remove();
    focused?.focus();
  }
}

function tell(text) {
  const notice = document.createElement("p");
  notice.className = "notice brief";
  notice.textContent = text;
  document.getElementById("notice")?.replaceChildren(notice);
  setTimeout(() => notice.remove(), 2500);
}
