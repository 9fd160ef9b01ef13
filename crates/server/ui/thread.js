/**
 * The messages that are shown: the last ones of the branch, and more while the reader scrolls up. The view follows the
 * end of an answer unless the reader has scrolled away from it.
 */

import { app } from "./app.js";
import { byId } from "./dom.js";
import { messageView } from "./messages.js";

/** Messages that are drawn at once. */
const WINDOW = 60;
/** More are drawn when the reader is this close to the first one, in pixels. */
const NEAR_TOP = 600;

const scroller = byId("scroller"), thread = byId("conversation");

/** Views of the messages that are drawn, in order. @type {Map<string, any>} */
const views = new Map();
/** The first message that is drawn, as an index of the path. */
let first = 0;
/** The messages of the branch. @type {any[]} */
let path = [];
/** Whether the view stays at the end, and where it was scrolled to before. */
let follow = true, lastTop = 0;

function followEnd() {
  if (follow) scroller.scrollTop = scroller.scrollHeight;
  const left = scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop;
  byId("latest").hidden = follow || left < 40;
}

/** Draws the messages from `first` on: views of messages that stay keep their nodes. */
function draw() {
  const wanted = path.slice(first);
  const ids = new Set(wanted.map(({ id }) => id));
  for (const [id, view] of views) if (!ids.has(id) || view.message !== app.chat.tree.messages.get(id)) { view.node.remove(); views.delete(id); }
  let before = null;
  for (let i = wanted.length - 1; i >= 0; i--) {
    let view = views.get(wanted[i].id);
    if (!view) { view = messageView(wanted[i]); views.set(wanted[i].id, view); }
    if (view.node.nextSibling !== before || view.node.parentNode !== thread) thread.insertBefore(view.node, before);
    before = view.node;
  }
  byId("more-above").hidden = first === 0;
}

/** Draws the conversation.
 * @param {{ end?: boolean, keep?: string }} how `end`: its last messages; `keep`: as it is, with this message at its place */
function showThread({ end = false, keep = "" } = {}) {
  const last = path.at(-1)?.id;
  const same = path[0] && path[0].conversation === app.chat.id;
  path = app.chat.path;
  if (end || !same) {
    first = Math.max(0, path.length - WINDOW);
    follow = true;
  } else {
    first = Math.min(first, Math.max(0, path.length - WINDOW));
  }
  const old = keep ? [...views.values()].find(view => !path.includes(view.message))?.node.getBoundingClientRect().top : undefined;
  // the foot of a message depends on whether it is the last one and how many branches there are
  for (const [id, view] of views) if (!end || id === last || view.message.role !== "assistant") view.message.id === app.edited || view.render();
  draw();
  for (const message of path.slice(-2)) views.get(message.id)?.render();
  const now = keep ? views.get(keep)?.node.getBoundingClientRect().top : undefined;
  if (old !== undefined && now !== undefined) { follow = false; scroller.scrollTop += now - old; }
  followEnd();
}

/** Draws more messages above, and keeps what is in sight where it is. */
function showMore() {
  if (!first) return;
  const top = scroller.getBoundingClientRect().top;
  const shown = [...views.values()].map(view => view.node).find(node => node.getBoundingClientRect().bottom > top) ?? thread.firstElementChild;
  const before = shown.getBoundingClientRect().top;
  first = Math.max(0, first - WINDOW);
  draw();
  scroller.scrollTop += shown.getBoundingClientRect().top - before;
  lastTop = scroller.scrollTop;
}

/** Whether a message is in sight of the part that is drawn; one above it is drawn first.
 * @param {string} id */
export function scrollToMessage(id) {
  const at = path.findIndex(message => message.id === id);
  if (at < 0) return;
  first = Math.min(first, Math.max(0, at - 5));
  follow = false;
  draw();
  views.get(id)?.node.scrollIntoView({ block: "start" });
}

/** The message before or after the one at the top of the screen.
 * @param {number} step */
export function step(step) {
  const nodes = [...views.values()].map(view => view.node).sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top);
  const top = scroller.getBoundingClientRect().top + 20;
  const target = step > 0 ? nodes.find(node => node.getBoundingClientRect().top > top + 4) : nodes.findLast(node => node.getBoundingClientRect().top < top - 24);
  follow = false;
  if (!target && step < 0) showMore();
  else target?.scrollIntoView({ block: "start" });
}

export function toEnd() {
  follow = true;
  followEnd();
}

/** @param {string} role
 * @returns {any} the view of the last message with this role */
export const lastView = role => [...views.values()].filter(view => view.message.role === role && path.includes(view.message))
  .sort((a, b) => path.indexOf(a.message) - path.indexOf(b.message)).at(-1);

export function startThread() {
  app.on("chat", how => showThread(how));
  app.on("message", message => {
    const view = views.get(message.id) ?? [...views.values()].find(view => view.message === message);
    view?.changed();
    if (view && app.edited === message.id) view.node.scrollIntoView({ block: "nearest" });
  });
  app.on("drawn", followEnd);
  scroller.addEventListener("scroll", () => {
    const left = scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop;
    if (scroller.scrollTop < lastTop && left > 4) follow = false;
    else if (left < 40) follow = true;
    lastTop = scroller.scrollTop;
    byId("latest").hidden = follow || left < 40;
    if (scroller.scrollTop < NEAR_TOP) showMore();
  }, { passive: true });
  byId("latest").addEventListener("click", toEnd);
  addEventListener("beforeprint", () => { first = 0; draw(); }); // paper has all messages
  new ResizeObserver(followEnd).observe(scroller);
  new ResizeObserver(followEnd).observe(thread); // formulas and pictures arrive later than their text
}
