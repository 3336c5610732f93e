"use strict";
// Asks for the page again every few seconds and exchanges what is live of it; keys. It runs nothing that it is sent:
// scripts of a parsed document do not run, and the content security policy allows this one only.
(() => {
  const PAUSE_MS = 3000, MOST_MS = 30000;
  const live = document.getElementById("live"), stale = document.getElementById("stale");
  const button = document.getElementById("pause"), help = document.getElementById("help");
  const isLive = live !== null && live.dataset.live === "yes";
  let paused = false, wait = PAUSE_MS, timer = 0, asking = null;

  function say(words) {
    stale.hidden = words === "";
    if (stale.textContent !== words) stale.textContent = words;
  }

  function later() {
    clearTimeout(timer);
    if (isLive && !paused && !document.hidden) timer = setTimeout(ask, wait);
  }

  async function ask() {
    if (asking !== null) return;
    asking = new AbortController();
    const limit = setTimeout(() => asking.abort(), MOST_MS);
    try {
      const answer = await fetch(location.origin + location.pathname + location.search, {
        cache: "no-store", credentials: "same-origin", redirect: "error", signal: asking.signal,
      });
      const text = await answer.text();
      const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("live");
      if (!answer.ok || fresh === null) throw new Error(String(answer.status));
      exchange(fresh);
      wait = PAUSE_MS;
      say("");
    } catch (error) {
      wait = Math.min(MOST_MS, wait * 2);
      say("No answer: these numbers are old. Trying again.");
    } finally {
      clearTimeout(limit);
      asking = null;
      later();
    }
  }

  // What a person is using stays: forms as they are, details as they were opened, the place in a table that scrolls.
  function exchange(fresh) {
    const focus = document.activeElement;
    const href = live.contains(focus) && focus.tagName === "A" ? focus.getAttribute("href") : null;
    const opened = [...live.querySelectorAll("details[open] > summary")].map((each) => each.textContent);
    const scrolled = [...live.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    const selection = document.getSelection();
    if (selection !== null && !selection.isCollapsed && live.contains(selection.anchorNode)) return;
    const forms = [...live.querySelectorAll("form")];
    fresh.querySelectorAll("form").forEach((form, at) => forms[at] && form.replaceWith(forms[at]));
    const form = document.activeElement;
    live.replaceChildren(...fresh.childNodes);
    live.querySelectorAll("details > summary").forEach((each) => {
      if (opened.includes(each.textContent)) each.parentElement.open = true;
    });
    live.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = scrolled[at] || 0; });
    if (href !== null) [...live.querySelectorAll("a")].find((each) => each.getAttribute("href") === href)?.focus();
    else if (form !== document.activeElement && live.contains(focus)) focus.focus();
  }

  function toggle() {
    paused = !paused;
    show();
    if (paused) clearTimeout(timer); else ask();
  }

  function show() {
    button.textContent = paused ? "Paused" : "Live";
    button.setAttribute("aria-pressed", String(paused));
    button.className = paused ? "paused" : "";
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden && isLive && !paused) ask(); });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const target = [...document.querySelectorAll("nav [data-key]")].find((each) => each.dataset.key === event.key);
    if (target) target.click();
    else if (event.key === "p" && isLive) toggle();
    else if (event.key === "?") help.showModal();
    else if (event.key === "/") document.querySelector("input[type=search]")?.focus();
    else return;
    event.preventDefault();
  });

  const keys = document.getElementById("keys");
  if (keys !== null) {
    keys.hidden = false;
    keys.addEventListener("click", () => help.showModal());
  }
  if (isLive) {
    button.hidden = false;
    button.addEventListener("click", toggle);
    show();
    later();
  }
})();
