// Ages that go on while nobody reloads, in the words of the server (durations.py), and local time on demand.

let ahead = 0; // how far this machine's clock is ahead of the server's

export function startTimes() {
  tellTimes();
  setInterval(tellTimes, 1000);
}

export function tellTimes() {
  const told = document.querySelector("main")?.dataset.now;
  if (told && told !== tellTimes.told) {
    ahead = Date.now() - Date.parse(told);
    tellTimes.told = told;
  }
  const now = Date.now() - ahead;
  for (const element of document.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.dateTime);
    const text = ago((now - moment) / 1000);
    if (element.textContent !== text) element.textContent = text;
    const utc = element.dateTime.slice(0, 19).replace("T", " ");
    const title = `${utc} UTC\n${moment.toLocaleString()} (local time)`;
    if (element.title !== title) element.title = title;
  }
}

const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

function ago(distance) {
  const whole = Math.floor(Math.abs(distance));
  if (whole === 0) return distance < 0 ? "now" : "just now";
  const [size, name] = UNITS.find(([size]) => whole >= size);
  const text = `${Math.floor(whole / size)} ${name}`;
  return distance > 0 ? `${text} ago` : `in ${text}`;
}
