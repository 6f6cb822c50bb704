// Forms whose answer is this same page with something changed: sent beside it, so that scrolling, selection
// and what is being typed elsewhere stay.

const LONGEST_MS = 60_000;

const pathOfPage = () => new URL(document.querySelector("main").dataset.address, location.href).pathname;

export function startQuietForms(refreshWith) {
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    const button = event.submitter;
    if (form.dataset.quiet === undefined && button?.dataset.quiet === undefined) return;
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form, button)); // before the button is disabled, which hides it
    if (button) button.disabled = true;
    try {
      const response = await fetch(button?.getAttribute("formaction") || form.getAttribute("action"), {
        method: "POST",
        body,
        headers: { Accept: "text/html" },
        signal: AbortSignal.timeout(LONGEST_MS),
      });
      if (!response.ok) tell(await problemIn(response));
      else if (new URL(response.url).pathname === pathOfPage()) await refreshWith(response);
      else location.assign(response.url);
    } catch {
      tell("The server can't be reached; it is unknown whether the request was carried out.");
    } finally {
      if (button) button.disabled = false;
      if (!button?.isConnected) document.getElementById("notice").focus();
    }
  });
}

async function problemIn(response) {
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  return page.querySelector("[role=alert]")?.textContent || `The server returned status ${response.status}.`;
}

// What was wrong, where the outcome would have been told.
function tell(text) {
  const notice = document.createElement("p");
  notice.className = "notice problem";
  notice.textContent = text;
  document.getElementById("notice").replaceChildren(notice);
}
