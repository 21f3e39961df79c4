// The rater's page works as a plain form. This adds: keys 1, 2, 3 and Enter; the seconds during which the page was seen;
// sending again by itself when the network fails (the server counts an answer once, however often it comes); and the
// next pair without a reload.
"use strict";

const RETRY_SECONDS = [1, 2, 4, 8, 15];

let seenMilliseconds = 0;
let seenSince = null;
let sending = false;

function startClock() {
  seenMilliseconds = 0;
  seenSince = document.visibilityState === "visible" ? performance.now() : null;
}

function readClock() {
  if (seenSince !== null) {
    const now = performance.now();
    seenMilliseconds += now - seenSince;
    seenSince = now;
  }
  return (seenMilliseconds / 1000).toFixed(2);
}

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") {
    seenSince = performance.now();
  } else {
    readClock();
    seenSince = null;
  }
});

function tell(message, kind) {
  const place = document.getElementById("status");
  if (!place) return;
  place.textContent = message;
  place.className = message ? `notice ${kind}` : "";
}

function wait(seconds) {
  return new Promise((resolve) => setTimeout(resolve, seconds * 1000));
}

async function post(form) {
  const body = new URLSearchParams(new FormData(form));
  for (let attempt = 0; ; attempt += 1) {
    try {
      const response = await fetch(form.action, { method: "POST", body });
      if (response.status < 500) return response;
    } catch {
      // no connection: as below
    }
    const seconds = RETRY_SECONDS[Math.min(attempt, RETRY_SECONDS.length - 1)];
    tell("Your answer has not reached the study yet. Trying again; please leave this page open.", "warn");
    await wait(seconds);
  }
}

function show(html) {
  const next = new DOMParser().parseFromString(html, "text/html");
  document.title = next.title;
  for (const id of ["top", "main"]) {
    const [now, then] = [document.getElementById(id), next.getElementById(id)];
    if (now && then) now.replaceWith(document.adoptNode(then));
    else if (now) now.remove();
  }
  document.body.className = next.body.className;
  window.scrollTo(0, 0);
  document.getElementById("question")?.focus();
  startClock();
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.id !== "answer") return;
  event.preventDefault();
  if (sending) return;
  sending = true;
  form.elements.seconds.value = readClock();
  const button = form.querySelector("button");
  button.setAttribute("aria-disabled", "true");
  button.textContent = "Sending…";
  try {
    show(await (await post(form)).text());
  } catch {
    location.reload(); // the answer has arrived, the next page has not
  } finally {
    sending = false;
  }
});

document.addEventListener("keydown", (event) => {
  const form = document.getElementById("answer");
  if (!form || sending || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  const option = form.querySelector(`input[type=radio][data-key="${CSS.escape(event.key)}"]`);
  if (option) {
    option.checked = true;
    option.focus({ preventScroll: true });
    event.preventDefault();
  } else if (event.key === "Enter" && !event.target.closest("button, a, summary, input")) {
    form.requestSubmit();
    event.preventDefault();
  }
});

startClock();
