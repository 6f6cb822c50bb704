// Forms whose answer is this same page with something changed: sent beside it, so that scrolling, selection
// and what is being typed elsewhere stay.

const pathOfPage = () => new URL(document.querySelector("main").dataset.address, location.href).pathname;

export function startQuietForms(refreshWith) {
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    const button = event.submitter;
    if (form.dataset.quiet === undefined && button?.dataset.quiet === undefined) return;
    event.preventDefault();
    if (button) button.disabled = true;
    try {
      const response = await fetch(button?.getAttribute("formaction") || form.getAttribute("action"), {
        method: "POST",
        body: new URLSearchParams(new FormData(form, button)),
        headers: { Accept: "text/html" },
      });
      if (!response.ok) await tell(response);
      else if (new URL(response.url).pathname === pathOfPage()) await refreshWith(response);
      else location.assign(response.url);
    } finally {
      if (button) button.disabled = false;
    }
  });
}

// What was wrong, where the outcome would have been told.
async function tell(response) {
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const notice = document.createElement("p");
  notice.className = "notice problem";
  notice.textContent = page.querySelector("[role=alert]")?.textContent || `The server answered ${response.status}.`;
  document.getElementById("notice").replaceChildren(notice);
}
